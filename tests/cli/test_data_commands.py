"""`fedsuv data` as a user types it, against a server on this machine."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from data_files import python2_pickle, write_fedscale, write_idx, write_speech

from fedsuv_plugin.cli import main
from fedsuv_plugin.tasks.datasets import DATASETS
from fedsuv_plugin.tasks.sources import Download, Source

safe_unpacking = pytest.mark.skipif(
    not hasattr(tarfile, "data_filter"), reason="this Python cannot unpack safely"
)

Data = Callable[..., tuple[int, str, str]]


@pytest.fixture
def data(capsys: pytest.CaptureFixture[str]) -> Data:
    """Run `fedsuv data ...`: its exit code, what it prints, and its errors."""

    def run(*words: object) -> tuple[int, str, str]:
        code = main(["data", *map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.mark.parametrize("command", ["data", "partition", "traces"])
def test_a_command_that_is_only_looked_at_imports_nothing_heavy(command: str) -> None:
    """`--help` comes at once: torch, scipy and matplotlib wait until the command runs."""
    heavy = "[m for m in ('torch', 'scipy', 'matplotlib', 'sklearn') if m in sys.modules]"
    code = f"import sys, fedsuv_plugin.cli.{command}; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# ---- a server that knows ranges


class Files:
    """What the server has, what it was asked, and how it behaves."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.ranges = True
        self.cut: int | None = None  # the connection ends after so many bytes
        self.url = ""


@pytest.fixture
def server() -> Iterator[Files]:
    files = Files()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            files.asked.append((self.path, wanted))
            content = files.content.get(self.path)
            if content is None:
                return self.send_error(404)
            start = 0
            if wanted and files.ranges:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start and start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:][: files.cut])

        def log_message(self, format: str, *args: object) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    files.url = f"http://127.0.0.1:{running.server_port}"
    yield files
    running.shutdown()
    thread.join()
    running.server_close()


def md5(content: bytes) -> str:
    return "md5:" + hashlib.md5(content, usedforsecurity=False).hexdigest()


def offer(
    server: Files,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    files: dict[str, bytes],
    **options: str,
) -> None:
    """Let the data set come from the server: path -> content."""
    server.content = {f"/{path}": content for path, content in files.items()}
    monkeypatch.setattr(
        DATASETS[name],
        "source",
        Source(
            "here",
            tuple(
                Download((f"{server.url}/{path}",), path, md5(content), **options)
                for path, content in files.items()
            ),
        ),
    )


def small_mnist(folder: Path) -> dict[str, bytes]:
    for part, n in (("train", 20), ("t10k", 5)):
        write_idx(
            folder / f"{part}-images",
            np.arange(n * 784, dtype=np.uint64).astype(np.uint8).reshape(n, 28, 28),
        )
        write_idx(folder / f"{part}-labels", np.arange(n, dtype=np.uint8) % 10)
    return {
        f"MNIST/raw/{part}-{kind}-{code}-ubyte": (folder / f"{part}-{kind}").read_bytes()
        for part in ("train", "t10k")
        for kind, code in (("images", "idx3"), ("labels", "idx1"))
    }


IMAGES = "MNIST/raw/train-images-idx3-ubyte"


@pytest.fixture
def mnist(server: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bytes]:
    files = small_mnist(tmp_path)
    offer(server, monkeypatch, "Mnist", files)
    return files


def test_fetch_then_check(
    data: Data, server: Files, mnist: dict[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "mnist"
    code, out, err = data("fetch", "Mnist", "--dir", folder)
    assert (code, err) == (0, "")
    assert f"{folder / IMAGES}: {len(mnist[IMAGES]):,} bytes, checksum right" in out
    assert f"fedsuv data check Mnist --dir {folder}" in out
    code, out, err = data("check", "Mnist", "--dir", folder)
    assert (code, err) == (0, "")
    assert "checksums: 4 of 4 files are the official ones" in out
    assert "samples: 20 for training, 5 for testing; inputs of shape (1, 28, 28), float32" in out
    assert "natural clients: none" in out
    server.asked.clear()
    assert data("fetch", "Mnist", "--dir", folder)[0] == 0
    assert server.asked == []  # all is there


def test_a_broken_download_goes_on_where_it_was(
    data: Data, server: Files, mnist: dict[str, bytes], tmp_path: Path
) -> None:
    folder, size = tmp_path / "mnist", len(mnist[IMAGES])
    server.cut = 5000
    code, out, err = data("fetch", "Mnist", "--dir", folder)
    assert code == 2
    assert f"the connection ended after 5,000 of {size:,} bytes" in err or "IncompleteRead" in err
    assert "fetch again to go on after 5,000 bytes" in err and err.count("\n") == 1
    assert sorted(file.name for file in (folder / IMAGES).parent.iterdir()) == [
        Path(IMAGES).name + ".part"
    ]
    server.cut = None
    server.asked.clear()
    assert data("fetch", "Mnist", "--dir", folder)[0] == 0
    assert server.asked[0] == (f"/{IMAGES}", "bytes=5000-")
    assert (folder / IMAGES).read_bytes() == mnist[IMAGES]


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("part", [b"", b"\0\0", "all", "more"])
def test_whatever_the_part_holds_the_file_comes_out_right_or_not_at_all(
    data: Data,
    server: Files,
    mnist: dict[str, bytes],
    tmp_path: Path,
    part: bytes | str,
    ranges: bool,
) -> None:
    folder, content = tmp_path / "mnist", mnist[IMAGES]
    (folder / IMAGES).parent.mkdir(parents=True)
    known = {"all": content, "more": content + b"more"}
    there = known[part] if isinstance(part, str) else part
    (folder / f"{IMAGES}.part").write_bytes(there)
    server.ranges = ranges
    assert data("fetch", "Mnist", "--dir", folder)[0] == 0
    assert (folder / IMAGES).read_bytes() == content
    assert not list(folder.rglob("*.part"))


def test_a_wrong_checksum(
    data: Data, server: Files, mnist: dict[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "mnist"
    server.content[f"/{IMAGES}"] = b"an error page"
    code, _, err = data("fetch", "Mnist", "--dir", folder)
    assert code == 2
    assert (
        f"expected checksum {md5(mnist[IMAGES])}, got {md5(b'an error page')}; what came is deleted"
        in err
    )
    assert not [file for file in folder.rglob("*") if file.is_file()]
    (folder / IMAGES).write_bytes(b"something of my own")
    code, _, err = data("fetch", "Mnist", "--dir", folder)
    assert code == 2 and "not the official file" in err and "move it away" in err
    assert (folder / IMAGES).read_bytes() == b"something of my own"


def test_offline_is_one_line_that_says_what_to_do(
    data: Data,
    monkeypatch: pytest.MonkeyPatch,
    server: Files,
    mnist: dict[str, bytes],
    tmp_path: Path,
) -> None:
    gone = server.url.rpartition(":")[0] + ":9"  # nobody listens there
    monkeypatch.setattr(
        DATASETS["Mnist"],
        "source",
        Source("here", (Download((f"{gone}/a", f"{server.url}/nowhere"), "a", md5(b"")),)),
    )
    code, _, err = data("fetch", "Mnist", "--dir", tmp_path / "mnist")
    assert code == 2
    assert err.count("\n") == 1
    assert f"{gone}/a: [Errno" in err and f"{server.url}/nowhere: Not Found" in err
    assert f"download it by hand, put it at {tmp_path / 'mnist' / 'a'} and fetch again" in err
    assert not list((tmp_path / "mnist").iterdir())


def test_the_second_source_serves_where_the_first_does_not(
    data: Data, monkeypatch: pytest.MonkeyPatch, server: Files, tmp_path: Path
) -> None:
    server.content["/b"] = b"content"
    monkeypatch.setattr(
        DATASETS["Mnist"],
        "source",
        Source(
            "here", (Download((f"{server.url}/nowhere", f"{server.url}/b"), "b", md5(b"content")),)
        ),
    )
    assert data("fetch", "Mnist", "--dir", tmp_path)[0] == 0
    assert (tmp_path / "b").read_bytes() == b"content"


# ---- archives


def packed(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for entry in sorted(folder.iterdir()):
            tar.add(entry, entry.name)
    return buffer.getvalue()


def small_cifar100(folder: Path) -> bytes:
    (folder / "cifar-100-python").mkdir(parents=True)
    for part, n in (("train", 4), ("test", 2)):
        (folder / "cifar-100-python" / part).write_bytes(
            python2_pickle(np.zeros((n, 3072), np.uint8), list(range(n)), "fine_labels")
        )
    return packed(folder)


@safe_unpacking
def test_archives_are_unpacked_and_go(
    data: Data, server: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive, folder = small_cifar100(tmp_path / "made"), tmp_path / "cifar100"
    offer(server, monkeypatch, "cifar100", {"c.tar.gz": archive}, unpacked="cifar-100-python/test")
    folder.mkdir()
    (folder / "c.tar.gz").write_bytes(archive)  # as one who was offline puts it there
    assert data("fetch", "cifar100", "--dir", folder)[0] == 0
    assert server.asked == []
    assert [entry.name for entry in folder.iterdir()] == ["cifar-100-python"]
    code, out, _ = data("check", "cifar100", "--dir", folder)
    assert code == 0 and "classes: 100, 4 of them here" in out
    assert "already there" in data("fetch", "cifar100", "--dir", folder)[1]
    assert data("fetch", "cifar100", "--dir", tmp_path / "other")[0] == 0  # now from the server
    assert server.asked == [("/c.tar.gz", None)]
    assert (tmp_path / "other" / "cifar-100-python" / "test").is_file()


@safe_unpacking
def test_nothing_of_a_users_is_overwritten(
    data: Data, server: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_speech(tmp_path / "made")
    (tmp_path / "made" / "testing_list.txt").write_text("yes/bb_nohash_0.wav\n")
    offer(
        server,
        monkeypatch,
        "google_speech",
        {"s.tar.gz": packed(tmp_path / "made")},
        unpacked="testing_list.txt",
    )
    mine = tmp_path / "speech" / "yes" / "mine.wav"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"")
    code, _, err = data("fetch", "google_speech", "--dir", tmp_path / "speech")
    assert code == 2 and f"{mine.parent}: is in the way of what s.tar.gz holds" in err
    assert sorted(entry.name for entry in mine.parent.parent.iterdir()) == ["s.tar.gz", "yes"]
    mine.unlink()
    mine.parent.rmdir()
    assert data("fetch", "google_speech", "--dir", tmp_path / "speech")[0] == 0
    code, out, _ = data("check", "google_speech", "--dir", tmp_path / "speech")
    assert code == 0
    assert "natural clients: 3 speakers" in out
    assert "classes: 35, 3 of them here, with 1 to 3 training samples each" in out


@safe_unpacking
def test_femnist_has_no_checksum_and_a_folder_around_it(
    data: Data, server: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "made" / "femnist").mkdir(parents=True)
    write_fedscale(tmp_path / "made" / "femnist")
    server.content["/f.tar.gz"] = packed(tmp_path / "made")
    source = DATASETS["femnist"].source
    assert source is not None and source.downloads[0].checksum is None
    monkeypatch.setattr(
        DATASETS["femnist"],
        "source",
        replace(
            source, downloads=(replace(source.downloads[0], urls=(f"{server.url}/f.tar.gz",)),)
        ),
    )
    code, out, _ = data("fetch", "femnist", "--dir", tmp_path / "femnist")
    assert code == 0 and "the source publishes no checksum" in out
    code, out, _ = data("check", "femnist", "--dir", tmp_path / "femnist")
    assert code == 0 and "natural clients: 2 writers" in out
    row = next(line for line in out.splitlines() if line.startswith("samples  "))
    assert row.split()[1:] == ["1", "1.1", "1.5", "2", "2.5", "2.9", "3"]  # of clients with 3 and 1


@safe_unpacking
@pytest.mark.parametrize(
    ("name", "content"), [("../outside", b"x"), ("/outside", b"x"), ("other", b"x")]
)
def test_archives_that_are_not_what_they_should_be(
    data: Data,
    server: Files,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    content: bytes,
) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    offer(
        server,
        monkeypatch,
        "cifar100",
        {"c.tar.gz": buffer.getvalue()},
        unpacked="cifar-100-python/test",
    )
    code, _, err = data("fetch", "cifar100", "--dir", tmp_path / "a" / "b")
    assert code == 2
    assert "c.tar.gz: cannot be unpacked" in err or "expected cifar-100-python/test in it" in err
    assert [entry.name for entry in (tmp_path / "a" / "b").iterdir()] == ["c.tar.gz"]
    assert [entry.name for entry in (tmp_path / "a").iterdir()] == ["b"]


@safe_unpacking
def test_a_truncated_archive(
    data: Data, server: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cut = small_cifar100(tmp_path / "made")[:-40]
    offer(server, monkeypatch, "cifar100", {"c.tar.gz": cut}, unpacked="cifar-100-python/test")
    code, _, err = data("fetch", "cifar100", "--dir", tmp_path / "c")
    assert code == 2 and "cannot be unpacked" in err
    assert [entry.name for entry in (tmp_path / "c").iterdir()] == ["c.tar.gz"]


def test_a_python_that_cannot_unpack_safely(
    data: Data, server: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    archive = small_cifar100(tmp_path / "made")
    offer(server, monkeypatch, "cifar100", {"c.tar.gz": archive}, unpacked="cifar-100-python/test")
    code, _, err = data("fetch", "cifar100", "--dir", tmp_path / "c")
    assert code == 2 and f"or unpack it into {tmp_path / 'c'} yourself" in err
    assert (tmp_path / "c" / "c.tar.gz").read_bytes() == archive  # there for unpacking by hand


# ---- what there is


def test_the_list(data: Data, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSUV_DATA", str(tmp_path))
    (tmp_path / "cifar10").mkdir()
    code, out, _ = data()
    rows = {line.split()[0]: line for line in out.splitlines()[1:]}
    assert code == 0 and sorted(rows) == DATASETS.names()
    assert str(tmp_path / "cifar10") in rows["cifar10"]
    assert " no " in rows["femnist"] and "writers" in rows["femnist"]
    assert "always" in rows["digits"]
    monkeypatch.delenv("FEDSUV_DATA")
    assert "FEDSUV_DATA is not set" in data()[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "cifar"], "fedsuv: data_set: expected one of Mnist, cifar10,"),
        (
            ["check", "cifar10"],
            "fedsuv: --dir: expected the folder of cifar10, or the environment variable "
            "FEDSUV_DATA",
        ),
        (["fetch", "cifar10"], "fedsuv: --dir: expected the folder of cifar10"),
        (
            ["check", "cifar10", "--dir", "nowhere"],
            "fedsuv: data_dir: no such file: nowhere/cifar-10-batches-py/",
        ),
        (
            ["fetch", "shakespeare", "--dir", "x"],
            "fedsuv: shakespeare: there is no file to download; in data/shakespeare "
            "of github.com/TalwalkarLab/leaf run `./preprocess.sh",
        ),
    ],
)
def test_mistakes_are_one_line(
    data: Data, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.delenv("FEDSUV_DATA", raising=False)
    code, out, err = data(*words)
    assert (code, out) == (2, "")
    assert err.startswith(message) and err.count("\n") == 1


def test_data_made_in_memory(data: Data) -> None:
    assert "nothing to fetch" in data("fetch", "digits")[1]
    assert "samples: 1,437 for training, 360 for testing" in data("check", "digits")[1]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Mnist", ["4 of 4 files are the official ones", "natural clients: 539 writers"]),
        (
            "fmnist",
            ["4 of 4 files are the official ones", "60,000 for training, 10,000 for testing"],
        ),
        ("cifar10", ["not the official bytes", "50,000 for training, 10,000 for testing"]),
        ("google_speech", ["classes: 35, 10 of them here", "natural clients: 191 speakers"]),
        ("shakespeare", ["inputs of shape (80,), int64", "natural clients: 794 speaking roles"]),
    ],
)
def test_check_passes_on_the_real_samples(
    data: Data, data_root: Path, name: str, expected: list[str]
) -> None:
    code, out, err = data("check", name)
    assert (code, err) == (0, "")
    for text in expected:
        assert text in out
