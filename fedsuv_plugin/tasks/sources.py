"""Where data sets come from, and getting them: resumed, checked, unpacked whole or not at all."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from fedsuv_plugin.errors import UserError

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte


@dataclass(frozen=True)
class Download:
    """One file of a data set."""

    urls: tuple[str, ...]  # all of the same file; the first that answers is taken
    path: str  # where it belongs, below the data set's folder
    checksum: str | None  # "md5:..." or "sha256:..."; none: the source publishes none
    # Of an archive: a file that is there once it has been unpacked. "": the file stays as it is.
    unpacked: str = ""
    # Of an archive: the folder in it whose content belongs into the data set's folder.
    inside: str = ""


@dataclass(frozen=True)
class Source:
    """Where a data set comes from."""

    about: str  # its home
    downloads: tuple[Download, ...] = ()
    checksums: Mapping[str, str] = field(default_factory=dict)  # of files that come out of archives
    by_hand: str = ""  # what a user can do instead of downloading, or must do without a download

    def official(self) -> dict[str, str]:
        """The published checksums of the files a loader reads."""
        plain = {d.path: d.checksum for d in self.downloads if d.checksum and not d.unpacked}
        return plain | dict(self.checksums)


def fetch(source: Source, folder: Path) -> None:
    """Bring a data set's files into its folder. What is there and right is left alone."""
    if not source.downloads:
        raise UserError(f"there is no file to download; {source.by_hand.format(folder=folder)}")
    for download in source.downloads:
        target = folder / download.path
        if download.unpacked and (folder / download.unpacked).exists():
            print(f"{folder / download.unpacked}: already there")
            continue
        if target.is_file():
            _check_in_place(target, download)
        else:
            _download(download, target, source.by_hand.format(folder=folder))
        if download.unpacked:
            _unpack(target, download, folder)


def matches(file: Path, checksum: str) -> bool:
    return checksum == _checksum(file, checksum.partition(":")[0])


def _checksum(file: Path, kind: str) -> str:
    digest = hashlib.new(kind, usedforsecurity=False)
    with file.open("rb") as f:
        while block := f.read(CHUNK):
            digest.update(block)
    return f"{kind}:{digest.hexdigest()}"


def _check_in_place(file: Path, download: Download) -> None:
    if download.checksum is not None and not matches(file, download.checksum):
        raise UserError(
            f"{file}: not the official file, whose checksum is {download.checksum}; move it away "
            "and fetch again"
        )
    print(f"{file}: already there")


def _download(download: Download, target: Path, by_hand: str) -> None:
    part = target.with_name(target.name + ".part")
    failures = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{target.parent}: cannot be made ({error.strerror})") from None
    for url in download.urls:
        try:
            _continue(url, part)
            break
        except (OSError, HTTPException) as error:
            failures.append(f"{url}: {getattr(error, 'reason', None) or error}")
    else:
        go_on = ""
        if part.exists():
            go_on = f"fetch again to go on after {part.stat().st_size:,} bytes, or "
        otherwise = f"; or {by_hand}" if by_hand else ""
        raise UserError(
            f"cannot be downloaded ({'; '.join(failures)}); {go_on}download it by hand, put it at "
            f"{target} and fetch again{otherwise}"
        )
    if download.checksum is None:
        checked = ""
        print(
            f"{target.name}: the source publishes no checksum; `fedsuv data check` looks at what "
            "is in it"
        )
    else:
        checked = ", checksum right"
        found = _checksum(part, download.checksum.partition(":")[0])
        if found != download.checksum:
            part.unlink()
            raise UserError(
                f"{url}: expected checksum {download.checksum}, got {found}; what came is deleted, "
                "fetch again"
            )
    part.replace(target)
    print(f"{target}: {target.stat().st_size:,} bytes{checked}")


def _continue(url: str, part: Path) -> None:
    """Download into `part`, going on after what is already there if the server can."""
    there = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={there}-"} if there else {})
    try:
        answer = urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        if error.code != 416:  # the server has nothing after what is there
            raise
        is_whole = error.headers.get("Content-Range") == f"bytes */{there}"
        if is_whole:
            return
        part.unlink()
        return _continue(url, part)
    with answer:
        goes_on = answer.status == 206
        if not goes_on:
            there = 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else there + int(length)
        with part.open("ab" if there else "wb") as f:
            while block := answer.read(CHUNK):
                f.write(block)
                there += len(block)
                _show(url, there, total)
    if total is not None and there < total:
        raise ConnectionError(f"the connection ended after {there:,} of {total:,} bytes")


def _show(url: str, there: int, total: int | None) -> None:
    if sys.stderr.isatty():
        share = "" if not total else f" of {total / 1e6:,.1f} MB, {there * 100 // total} %"
        end = "\r\x1b[K" if there == total else ""
        line = f"\r{url}: {there / 1e6:,.1f} MB{share}\x1b[K{end}"
        print(line, end="", file=sys.stderr, flush=True)


def _unpack(archive: Path, download: Download, folder: Path) -> None:
    """Unpack an archive into a folder beside, move its content in, and delete the archive.

    The file by which an unpacked archive is known is moved last, so that it never promises more
    than there is."""
    if not hasattr(tarfile, "data_filter"):
        raise UserError(
            f"{archive}: this Python cannot unpack archives safely; expected 3.10.12, 3.11.4 or a "
            f"later one of these, or 3.12, or unpack it into {folder} yourself"
        )
    print(f"{archive.name}: unpacking")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as beside:
        try:
            with tarfile.open(archive) as tar:
                # The filter refuses files outside the folder, links that lead out, and devices.
                tar.extractall(beside, filter="data")
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise UserError(
                f"{archive}: cannot be unpacked ({error}); delete it and fetch again"
            ) from None
        inside = Path(beside) / download.inside
        if not (inside / download.unpacked).exists():
            raise UserError(
                f"{archive}: expected {Path(download.inside) / download.unpacked} in it, found "
                "none; is it the archive of this data set?"
            )
        last = Path(download.unpacked).parts[0]
        entries = sorted(inside.iterdir(), key=lambda entry: (entry.name == last, entry.name))
        for entry in entries:
            if (folder / entry.name).exists():
                raise UserError(
                    f"{folder / entry.name}: is in the way of what {archive.name} holds; move it "
                    "away and fetch again"
                )
        for entry in entries:
            shutil.move(entry, folder / entry.name)
    archive.unlink()
    print(f"{folder}: unpacked")
