"""Tables in memory (pandas data frames, and lists of mappings) and in parquet files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from audit.errors import InvalidInput, require_modules
from audit.finished.material import Material, flattened
from audit.finished.readers.registry import ReadOptions, is_file_with_suffix, reader, shown
from audit.finished.readers.tables import material_of_rows


def is_frame(source: Any) -> bool:
    """Whether a source is a pandas data frame; pandas is not imported."""
    return type(source).__name__ == "DataFrame" and hasattr(source, "to_dict")


@reader("pandas", is_frame, place=20)
def read_frame(source: Any, options: ReadOptions) -> Material:
    """The runs of a data frame, one per row."""
    return material_of_frame(source, "the data frame", options)


def material_of_frame(frame: Any, name: str, options: ReadOptions) -> Material:
    """The runs of a data frame.

    Raises:
        InvalidInput: it has no row, or two columns of one name.
    """
    columns = [str(column) for column in frame.columns]
    if len(set(columns)) < len(columns):
        raise InvalidInput(f"{name} must name each column once, got {columns}")
    records = frame.to_dict("records")
    rows = [dict(zip(columns, record.values(), strict=True)) for record in records]
    return material_of_rows(rows, [f"{name}, row {i}" for i in range(len(rows))], name, options)


def _is_list_of_mappings(source: Any) -> bool:
    return (
        isinstance(source, list | tuple)
        and bool(source)
        and all(isinstance(row, Mapping) for row in source)
    )


@reader("list", _is_list_of_mappings, place=30)
def read_list(source: Any, options: ReadOptions) -> Material:
    """The runs of a list of mappings, one per run."""
    rows = [flattened({str(name): cell for name, cell in row.items()}) for row in source]
    places = [f"run {i}" for i in range(1, len(rows) + 1)]
    return material_of_rows(rows, places, "the list of runs", options)


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
