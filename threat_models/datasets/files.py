"""Locates and downloads the files of data sets."""

import contextlib
import logging
import os
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from threat_models.datasets.catalogue import RemoteFile, split_files


def folder_of(data_root: str | None) -> Path:
    """The data folder: `data_root`, else AUDIT_DATA_ROOT, else a folder in the user's cache."""
    root = data_root or os.environ.get("AUDIT_DATA_ROOT")
    return Path(root) if root else Path.home() / ".cache" / "dp-tuning-audit"


def require(splits: Sequence[tuple[str, bool]], data_root: str | None = None) -> None:
    """Downloads and checks the missing files of several splits, pairs of data set and `train`.

    A FileNotFoundError lists the missing files of all splits.
    """
    root = folder_of(data_root)
    missing: list[str] = []
    reason: Exception | None = None
    for name, train in splits:
        files = split_files(name, train)
        if all(local(root, file).exists() for file in files):
            continue
        folders = {folder for file in files for folder in (root / file.path).parents}
        absent = [folder for folder in folders if not folder.exists()]
        try:
            _download(files, root)
        except Exception as error:  # networks, disks and servers raise many classes
            reason = error
            _remove_if_empty(absent)
            missing += [f.path for f in files if not local(root, f).exists()]
    if reason is not None:
        names = dict.fromkeys(name for name, _ in splits)
        raise FileNotFoundError(
            f"data of {' and '.join(names)} must be in {root}, and missing files cannot be "
            f"downloaded ({type(reason).__name__}: {reason}); add: {', '.join(missing)}"
        ) from reason


def paths_of(name: str, train: bool, data_root: str | None) -> list[Path]:
    """The paths of one split's files, after downloading missing ones."""
    require([(name, train)], data_root)
    return [local(folder_of(data_root), file) for file in split_files(name, train)]


def local(root: Path, file: RemoteFile) -> Path:
    """The path of a file; of the unpacked file if it exists."""
    path = root / file.path
    unpacked = path.with_suffix("")
    return unpacked if path.suffix == ".gz" and unpacked.exists() else path


def _remove_if_empty(folders: Sequence[Path]) -> None:
    """Removes the empty ones of these folders, which a failed download created."""
    for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _download(files: tuple[RemoteFile, ...], root: Path) -> None:
    """Downloads the missing files of one split and checks their md5."""
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)  # the progress bar shows the downloads
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
