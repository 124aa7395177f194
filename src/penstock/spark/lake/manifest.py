"""The files of a lake, and the atomic commit of a batch.

    _penstock/lake.json            the id of the lake and the version of its layout
    _penstock/manifests/N.json     all files of all tables as of batch N, and the last row read of each store
    _penstock/staging/N/…          the files of batch N before its commit
    _penstock/reading/N/…          hard links to files of manifest N for its readers, kept for a day
    _penstock/lock                 locked by the process that changes the lake
    events/ attempts/ …            the tables

A batch writes its files into staging, flushes them, and then writes manifest N atomically, which is the commit. Afterwards
the files are moved into the tables' folders, and files that N does not list are deleted. After a crash before the commit the
next sync deletes the staging folder; after a crash behind it, it does the remaining moves. So after each finished sync the
folders have exactly the files of the newest manifest, and any Parquet reader can read them.

Files get the mode of the store's file, so that users who may read the store may read its lake. Spark writes files with the
umask of its executors, but into the staging folder, which has that mode, too; files get theirs before they are moved.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import BackendError, InvalidArgumentError
from penstock.spark.lake.files import flush, make_folder, opened, write_whole
from penstock.spark.stores import PRIVATE
from penstock.spark.tables import EVENTS, LAKE_TABLES

__all__ = ["VERSION", "LakeFile", "LakeFolder", "Manifest", "Staged"]

#: The version of the layout and of the tables. Raise it when a table changes; older lakes are rebuilt from `events`.
VERSION: Final = 2
_KEPT_MANIFESTS: Final = 10
#: How long a file stays readable for its readers after it was replaced.
_HOLD_SECONDS: Final = 86_400
_MAGIC: Final = b"PAR1"


class LakeFile(msgspec.Struct, frozen=True, order=True):
    """A file of a table: its path in the lake, its number of rows, its part of the table, and its size in bytes.

    The size is 0 in manifests of older versions, which did not record it.
    """

    path: str
    rows: int
    part: str = ""
    size: int = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The lake as of a batch.

    Attributes:
        offsets: by source, the `seq` of the last journal row that was read.
        hidden: by source, the number of rows up to there that were archived before the first sync.
    """

    number: int = 0
    version: int = VERSION
    offsets: dict[str, int] = {}
    hidden: dict[str, int] = {}
    tables: dict[str, list[LakeFile]] = {}

    def files(self, table: str) -> list[LakeFile]:
        return self.tables.get(table, [])

    def rows(self, table: str) -> int:
        return sum(each.rows for each in self.files(table))


class _Identity(msgspec.Struct, frozen=True, kw_only=True):
    format: str = "penstock-lake"
    version: int = VERSION
    id: str = ""


class Staged(msgspec.Struct, frozen=True):
    """A file in staging, and its future path in the lake."""

    staged: Path
    file: LakeFile


class LakeFolder:
    """The folder of a lake, on a file system that driver and executors share."""

    def __init__(self, path: str | os.PathLike[str], mode: int | None = None) -> None:
        """Use a folder; nothing is read or created.

        Args:
            path: of the folder.
            mode: of new files; None is that of lake.json, or readable by the user only if there is none.
        """
        self.path = Path(path).absolute()
        self._own = self.path / "_penstock"
        self._mode = mode

    def __repr__(self) -> str:
        return f"<LakeFolder {self.path}>"

    # -- identity -----------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return (self._own / "lake.json").is_file()

    def check(self) -> None:
        """Check that the folder is a lake of a version that this code supports.

        Raises:
            InvalidArgumentError: it is not a lake.
            BackendError: it was written by a newer version.
        """
        if not self.exists:
            raise InvalidArgumentError(
                f"there is no lake in {self.path}; penstock pipeline run --lake makes one", field="lake"
            )
        self._identity()

    @property
    def id(self) -> str:
        return self._identity().id

    @property
    def mode(self) -> int:
        """The mode of new files."""
        if self._mode is None:
            try:
                self._mode = (self._own / "lake.json").stat().st_mode & 0o666
            except OSError:
                self._mode = PRIVATE
        return self._mode

    def _make(self, folder: Path) -> None:
        make_folder(folder, self.path, self.mode)

    def _identity(self) -> _Identity:
        try:
            found = msgspec.json.decode((self._own / "lake.json").read_bytes(), type=_Identity)
        except (OSError, msgspec.MsgspecError) as error:
            raise BackendError(f"{self._own / 'lake.json'} cannot be read: {error}") from error
        _check_version(found.version, self.path)
        return found

    def create(self) -> None:
        """Make the folder a lake, unless it is one.

        Raises:
            InvalidArgumentError: it has other files.
        """
        if self.check_usable():
            return
        self._make(self._own)
        write_whole(self._own / "lake.json", msgspec.json.encode(_Identity(id=uuid.uuid4().hex)), self.mode)

    def check_usable(self) -> bool:
        """Check that the folder is a lake or can become one; return whether it is one.

        Raises:
            InvalidArgumentError: it has other files.
            BackendError: it was written by a newer version.
        """
        if self.exists:
            self._identity()
            return True
        if self.path.exists() and (not self.path.is_dir() or self._has_foreign_files()):
            raise InvalidArgumentError(
                f"{self.path} is not empty and not a lake; name an empty folder, or one that does not exist",
                field="lake",
                value=str(self.path),
            )
        return False

    def _has_foreign_files(self) -> bool:
        # A first sync that was killed early may have left the folder _penstock.
        return any(each.name != "_penstock" for each in self.path.iterdir())

    # -- locking ------------------------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the lake for changes.

        Raises:
            BackendError: another pipeline has locked it.
        """
        self._make(self._own)
        with opened(self._own / "lock", "a+", self.mode) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read(200).strip() or "another process"
                raise BackendError(
                    f"another pipeline is at work on {self.path} ({holder}); let it end, then run this one again",
                    retryable=True,
                ) from None
            file.truncate(0)
            file.write(f"pid {os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield

    # -- reading ------------------------------------------------------------------------------------------------

    def current(self) -> Manifest:
        """Return the newest manifest; an empty lake has number 0.

        Raises:
            BackendError: it was written by a newer version, or cannot be read.
        """
        numbers = self._numbers()
        if not numbers:
            return Manifest()
        path = self._manifest(numbers[-1])
        try:
            raw = path.read_bytes()
            _check_version(msgspec.json.decode(raw, type=_Identity).version, self.path)
            return msgspec.json.decode(raw, type=Manifest)
        except (OSError, msgspec.MsgspecError) as error:
            raise BackendError(f"{path} cannot be read: {error}") from error

    def location(self, manifest: Manifest, file: LakeFile) -> Path:
        """Return the current path of a file of a manifest, which may not have been moved out of staging yet."""
        place = self.path / file.path
        if not place.exists():
            staged = self._staging(manifest.number) / _staged_name(file.path)
            if staged.exists():
                return staged
        self._check_intact(file)
        return place

    def _check_intact(self, file: LakeFile) -> None:
        """Check that a file exists with the size of its commit.

        Raises:
            BackendError: it is missing, or truncated.
        """
        place = self.path / file.path
        try:
            found = place.stat().st_size
        except FileNotFoundError:
            what = "is missing from the lake"
        else:
            # Another tool may have rewritten the file; a truncated file lacks the last bytes of the format.
            if not file.size or found == file.size or _ends_as_parquet(place):
                return
            what = f"is damaged: it has {found} bytes, and was written with {file.size}"
        table = file.path.partition("/")[0]
        raise BackendError(
            f"{place} {what}; restore it from a backup, or "
            + (
                "sync into a new folder"
                if table == EVENTS.name
                else f"let `penstock pipeline run --rebuild` rebuild {table} from events"
            )
        )

    def hold(self, manifest: Manifest, files: Iterable[LakeFile]) -> list[Path]:
        """Return paths at which files of a manifest stay readable for a day, even if other batches replace them.

        They are hard links outside of the tables' folders, so they take no space and other readers do not see them. A
        reader without write permission gets the paths of the files themselves.

        Raises:
            BackendError: a file is missing or damaged.
        """
        folder = self._own / "reading" / f"{manifest.number:09d}"
        places = [(self.location(manifest, file), folder / _staged_name(file.path)) for file in files]
        try:
            self._make(folder)
            os.utime(folder)  # restarts the day
            for place, link in places:
                _link(link, place)
        except FileNotFoundError as error:
            raise BackendError(
                f"a batch has replaced {error.filename}; read again", retryable=True
            ) from error
        except OSError:  # a read-only lake, or a file system without hard links
            return [place for place, _ in places]
        return [link for _, link in places]

    # -- writing ------------------------------------------------------------------------------------------------

    def new_staging(self, number: int, table: str) -> Path:
        """Return a new path in staging, for files of a table."""
        folder = self._staging(number) / "written" / f"{table.replace('/', '_')}-{uuid.uuid4().hex[:8]}"
        self._make(folder.parent)
        return folder

    def repair(self, *, rebuilds: bool = False) -> list[str]:
        """Finish the moves of a committed batch, delete files that are not committed; return the actions.

        Args:
            rebuilds: every table except `events` will be rebuilt, so its files need not be intact.

        Raises:
            BackendError: a file of the lake is missing or damaged.
        """
        manifest = self.current()
        done: list[str] = []
        files = {file.path: file for files in manifest.tables.values() for file in files}
        wanted = set(files)
        events = {file.path for file in manifest.files(EVENTS.name)}
        for path, file in sorted(files.items()):
            staged = self._staging(manifest.number) / _staged_name(path)
            if not (self.path / path).exists() and staged.exists():
                self._move(staged, self.path / path)
                done.append(f"moved {path}")
            if not rebuilds or path in events:
                self._check_intact(file)
        for stray in self._strays(wanted):
            stray.unlink()
            done.append(f"deleted {stray.relative_to(self.path)}")
        staging = self._own / "staging"
        if staging.exists():
            # Java may go on writing for a moment after its driver was killed; such files are never read, and the next
            # sync deletes them.
            shutil.rmtree(staging, ignore_errors=True)
            done.append("deleted staging")
        for folder in (self._own / "reading").glob("*"):
            if folder.stat().st_mtime < time.time() - _HOLD_SECONDS:
                shutil.rmtree(folder)
        for number in self._numbers()[:-_KEPT_MANIFESTS]:
            self._manifest(number).unlink(missing_ok=True)
        for temporary in self._own.glob("**/*.tmp"):
            temporary.unlink(missing_ok=True)
        return done

    def commit(self, manifest: Manifest, added: Iterable[Staged]) -> None:
        """Commit a batch.

        Raises:
            BackendError: another pipeline has committed this number.
        """
        staging = self._staging(manifest.number)
        folders = set()
        for each in added:
            target = staging / _staged_name(each.file.path)
            each.staged.chmod(self.mode)
            flush(each.staged)
            each.staged.rename(target)
            folders.add(target.parent)
        for folder in folders:
            flush(folder)
        self._make(self._manifest(1).parent)
        path = self._manifest(manifest.number)
        write_whole(path, msgspec.json.encode(manifest), self.mode, exclusive=True)
        self.repair()

    def _move(self, source: Path, target: Path) -> None:
        self._make(target.parent)
        source.rename(target)
        flush(target.parent)

    def _strays(self, wanted: set[str]) -> Iterator[Path]:
        for table in LAKE_TABLES:
            folder = self.path / table
            if folder.is_dir():
                for path in folder.rglob("*"):
                    if path.is_file() and str(path.relative_to(self.path)) not in wanted:
                        yield path
                for path in sorted(folder.rglob("*"), reverse=True):
                    if path.is_dir():
                        with suppress(OSError):  # not empty
                            path.rmdir()

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in (self._own / "manifests").glob("*.json"))

    def _manifest(self, number: int) -> Path:
        return self._own / "manifests" / f"{number:09d}.json"

    def _staging(self, number: int) -> Path:
        return self._own / "staging" / f"{number:09d}"


def _staged_name(path: str) -> str:
    return path.replace("/", "~")


def _ends_as_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - len(_MAGIC)))
        return file.read() == _MAGIC


def _check_version(version: int, path: Path) -> None:
    if version > VERSION:
        raise BackendError(
            f"the lake in {path} has version {version}, this code knows up to {VERSION}; upgrade penstock"
        )


def _link(link: Path, place: Path) -> None:
    try:
        link.hardlink_to(place)
    except FileExistsError:
        if not link.samefile(place):  # the file was restored from a backup
            link.unlink()
            link.hardlink_to(place)
