"""Tables in parquet files, read by pandas."""

from pathlib import Path
from typing import Any

from audit.errors import InvalidInput, require_modules
from audit.finished.material import Material
from audit.finished.readers.data_frames import material_of_frame
from audit.finished.readers.registry import ReadOptions, is_file_with_suffix, reader, shown


@reader("parquet", is_file_with_suffix(".parquet", ".pq"), place=200)
def read_parquet(source: Any, options: ReadOptions) -> Material:
    """The runs of a parquet file."""
    path = Path(source)
    name = shown(path)
    require_modules("trackers", "pandas", "pyarrow")
    import pandas

    try:
        frame = pandas.read_parquet(path)
    except Exception as error:  # pyarrow raises errors of its own classes
        raise InvalidInput(
            f"source must be a readable parquet file, got {name}: "
            f"{' '.join(str(error).split())[:200]}"
        ) from None
    return material_of_frame(frame, name, options)
