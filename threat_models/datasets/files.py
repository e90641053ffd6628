"""Where the files of a data set lie, and how they get there."""

import logging
import os
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from threat_models.datasets.catalogue import RemoteFile, split_files


def folder_of(data_root: str | None) -> Path:
    """The data root: what is given, else AUDIT_DATA_ROOT, else a folder of the user's cache."""
    root = data_root or os.environ.get("AUDIT_DATA_ROOT")
    return Path(root) if root else Path.home() / ".cache" / "dp-tuning-audit"


def require(splits: Sequence[tuple[str, bool]], data_root: str | None = None) -> None:
    """Has the files of several splits in place: those that are absent are downloaded and checked.

    Args:
        splits: names of data sets, and whether it is the training split.
        data_root: folder of the files, as for `load`.

    Raises:
        FileNotFoundError: files that are absent and cannot be downloaded, of all splits together;
            the message lists them.
    """
    root = folder_of(data_root)
    missing: list[str] = []
    reason: Exception | None = None
    for name, train in splits:
        files = split_files(name, train)
        if all(local(root, file).exists() for file in files):
            continue
        try:
            _download(files, root)
        except Exception as error:  # whatever a network, a disk or a server makes of it
            reason = error
            missing += [f.path for f in files if not local(root, f).exists()]
    if reason is not None:
        names = dict.fromkeys(name for name, _ in splits)
        raise FileNotFoundError(
            f"data of {' and '.join(names)} must be under {root}, and what is missing cannot be "
            f"downloaded ({type(reason).__name__}: {reason}); put there: {', '.join(missing)}"
        ) from reason


def paths_of(name: str, train: bool, data_root: str | None) -> list[Path]:
    """The files of one split, in place."""
    require([(name, train)], data_root)
    return [local(folder_of(data_root), file) for file in split_files(name, train)]


def local(root: Path, file: RemoteFile) -> Path:
    """Where a file lies; unpacked where that is there."""
    path = root / file.path
    unpacked = path.with_suffix("")
    return unpacked if path.suffix == ".gz" and unpacked.exists() else path


def _download(files: tuple[RemoteFile, ...], root: Path) -> None:
    """Fetches what is absent of one split, checked by its md5."""
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)  # what it does is shown by the bar, if by anything
    for file in files:
        target = root / file.path
        if local(root, file).exists():
            continue
        fetched = pooch.retrieve(
            file.url,
            known_hash=f"md5:{file.checksum}",
            progressbar=sys.stderr.isatty(),
            path=root if file.is_archived else target.parent,
            fname=file.url.rsplit("/", 1)[1] if file.is_archived else target.name,
        )
        if file.is_archived:
            with tarfile.open(fetched) as tar:
                for member in files:
                    tar.extract(member.path, root, filter="data")
