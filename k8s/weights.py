"""Copies models with their checksums: from a shared file system to a node's own disk (overlays/node-disk).

    python k8s/weights.py sums FOLDER               write SHA256SUMS, which `sha256sum --check` reads, too
    python k8s/weights.py copy FROM TO [MODEL ...]  copy what it lists, or models of the hub alone, and compare

It uses the standard library alone, as it runs before anything else of a pod.
"""

import hashlib
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

SUMS = "SHA256SUMS"
_CHUNK = 1 << 24
_LOCKS = ".locks"  # of the hub's client


def write_sums(folder: Path) -> int:
    """Write the checksums of all files below a folder, links left out, and return their number."""
    names = sorted(path.relative_to(folder) for path in _files(folder) if path.name != SUMS and not path.is_symlink())
    lines = [f"{_digest(folder / name)}  {name}\n" for name in names]
    unfinished = folder / f"{SUMS}.part"
    unfinished.write_text("".join(lines))
    unfinished.replace(folder / SUMS)
    return len(lines)


def copy(source: Path, target: Path, models: Sequence[str] = ()) -> int:
    """Copy the listed files, those of some models if any are named, and all links; return the number of files.

    A file that is there with its checksum is not copied again. Raises ValueError if a copy differs, if no checksums
    are there, or if a model is not among the files.
    """
    if not (source / SUMS).is_file():
        raise ValueError(f"{source / SUMS} is not there; `python k8s/weights.py sums {source}` writes it")
    folders = {model: f"models--{model.replace('/', '--')}" for model in models}
    lines = [line.split("  ", 1) for line in (source / SUMS).read_text().splitlines()]
    wanted = [(digest, name) for digest, name in lines if not models or _is_of(name, folders.values())]
    for model, folder in folders.items():
        if not any(_is_of(name, [folder]) for _, name in wanted):
            raise ValueError(f"{source} has no model {model!r} (no folder {folder}); base/models fetches models")
    for digest, name in wanted:
        _copy_file(source / name, target / name, digest)
    for path in _files(source):
        name = str(path.relative_to(source))
        if path.is_symlink() and (not models or _is_of(name, folders.values())):
            _link(path, target / name)
            if not (target / name).exists():
                raise ValueError(
                    f"{path} leads to {path.resolve()}, which is not copied with it; "
                    "fetch it with HF_HUB_DISABLE_SHARED_BLOBS=1"
                )
    return len(wanted)


def _copy_file(source: Path, target: Path, digest: str) -> None:
    if target.is_file() and _digest(target) == digest:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{target.name}.part")
    found = hashlib.sha256()
    with open(source, "rb") as reading, open(unfinished, "wb") as writing:
        while chunk := reading.read(_CHUNK):
            found.update(chunk)
            writing.write(chunk)
    if found.hexdigest() != digest:
        unfinished.unlink()
        raise ValueError(f"{source} has sha256 {found.hexdigest()}, and {SUMS} says {digest}; fetch it again")
    unfinished.replace(target)


def _link(link: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink():
        target.unlink()
    target.symlink_to(os.readlink(link))


def _is_of(name: str, folders: Collection[str]) -> bool:
    return any(part in folders for part in Path(name).parts)


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(root) / name).is_symlink()]  # to folders: copied as links
        folders[:] = sorted(name for name in folders if name != _LOCKS and name not in links)
        yield from (Path(root) / name for name in sorted([*names, *links]))


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say and return the exit code: 1 if a file is missing or differs, 2 if it is no command."""
    match list(sys.argv[1:] if arguments is None else arguments):
        case ["sums", folder]:
            print(f"{write_sums(Path(folder))} files in {folder}/{SUMS}", flush=True)
        case ["copy", source, target, *models]:
            try:
                print(
                    f"{copy(Path(source), Path(target), models)} files in {target}, as {source} lists them", flush=True
                )
            except (OSError, ValueError) as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
