"""Runs a module in a namespace of its own, in which no write reaches a file of the user.

This file is started by its path, before anything is imported that starts a thread: a process with
threads cannot enter a user namespace. Every file system that can be written to gets an overlay,
whose upper layer is in memory and ends with the process.
"""

import ctypes
import os
import runpy
import sys

_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_PRIVATE, _RECURSIVE, _BIND, _REMOUNT, _READ_ONLY = 1 << 18, 16384, 4096, 32, 1
# File systems that hold no files of the user.
_VIRTUAL = (
    *("proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2", "securityfs", "debugfs", "tracefs"),
    *("bpf", "pstore", "configfs", "fusectl", "hugetlbfs", "nsfs", "binfmt_misc", "rpc_pipefs"),
)
_LAYERS = "/dev/shm"


def protect() -> str:
    """Enters a namespace and covers every file system; returns the reason where it cannot."""
    if not sys.platform.startswith("linux"):
        return "only Linux has user namespaces"
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_USER | _NEW_MOUNTS):
        return f"no user namespace: {os.strerror(ctypes.get_errno())}"
    try:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
        _mount(libc, None, "/", None, _RECURSIVE | _PRIVATE)
        points = _mount_points()
        _mount(libc, "tmpfs", _LAYERS, "tmpfs", 0)
        for number, point in enumerate(points):
            _cover(libc, point, f"{_LAYERS}/{number}")
        os.chdir(os.getcwd())  # the folder below the overlay would still be writable
    except OSError as error:
        return f"the files could not be covered: {error}"
    return ""


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _mount(libc: ctypes.CDLL, source: str | None, target: str, kind: str | None, flags: int,
           options: str = "") -> None:  # fmt: skip
    encoded = [
        None if argument is None else argument.encode() for argument in (source, target, kind)
    ]
    if libc.mount(*encoded, ctypes.c_ulong(flags), options.encode() or None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _mount_points() -> list[str]:
    """Mount points of file systems with files, the outer ones first."""
    points = []
    with open("/proc/self/mountinfo") as file:
        for line in file:
            before, after = line.split(" - ", 1)
            point = before.split()[4].encode().decode("unicode_escape")
            kind = after.split()[0]
            hidden = point == "/dev" or point.startswith(("/proc", "/sys", "/dev/"))
            if kind not in _VIRTUAL and not hidden:
                points.append(point)
    return sorted(set(points), key=lambda point: (point.count("/"), point))


def _cover(libc: ctypes.CDLL, point: str, layer: str) -> None:
    """Covers a mount point by an overlay, or makes it read-only where that is impossible."""
    if os.path.isdir(point):
        if point == "/":  # an overlay over the root would hide all mounts below it
            for name in sorted(os.listdir("/")):
                folder = f"/{name}"
                plain = os.path.isdir(folder) and not os.path.islink(folder)
                if plain and not os.path.ismount(folder) and name not in ("proc", "sys", "dev"):
                    _cover(libc, folder, f"{layer}-{name}")
            try:  # files of the root folder itself
                _mount(libc, None, "/", None, _BIND | _REMOUNT | _READ_ONLY)
            except OSError:
                if os.access("/", os.W_OK):
                    raise
            return
        below = [path for path in _mount_points() if path.startswith(f"{point}/")]
        upper, work = f"{layer}/upper", f"{layer}/work"
        os.makedirs(upper)
        os.makedirs(work)
        try:
            if below:  # the overlay would hide them
                raise OSError(0, "mounts below", point)
            options = f"lowerdir={_escaped(point)},upperdir={upper},workdir={work},userxattr"
            _mount(libc, "overlay", point, "overlay", 0, options)
            return
        except OSError:
            pass
    _mount(libc, point, point, None, _BIND | _RECURSIVE)
    try:
        _mount(libc, None, point, None, _BIND | _REMOUNT | _READ_ONLY)
    except OSError:
        if os.access(point, os.W_OK):
            raise


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


if __name__ == "__main__":
    os.environ["AUDIT_SCRIPT_UNPROTECTED"] = protect() if sys.argv[1] == "protect" else ""
    sys.argv = [sys.argv[0], *sys.argv[2:]]
    runpy.run_module("audit.loop.sources.script_process", run_name="__main__", alter_sys=False)
