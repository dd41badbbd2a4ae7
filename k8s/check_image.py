"""`python k8s/check_image.py`: the mistakes in k8s/Dockerfile and .dockerignore that can be seen without building."""

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NEEDED = ("bash", "wget", "procps", "g++")  # KubeRay's probes, drain.sh, the CPU kernels
_NEVER = (".git", ".venv", "out", "tests", ".env", "id_rsa", "k8s/overlays")
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|API_?KEY|ACCESS_?KEY", re.IGNORECASE)


@dataclass(frozen=True)
class Step:
    """An instruction with its arguments on one line, and the number of its stage from 0 (-1 before the first stage)."""

    name: str
    arguments: str
    stage: int


def steps_of(dockerfile: str) -> list[Step]:
    """Return the instructions of a Dockerfile."""
    steps, stage = [], -1
    text = re.sub(r"^\s*#.*\n", "", dockerfile, flags=re.MULTILINE).replace("\\\n", " ")
    for name, arguments in re.findall(r"^\s*(\w+) +(.*\S)", text, flags=re.MULTILINE):
        stage += name.upper() == "FROM"
        steps.append(Step(name.upper(), arguments, stage))
    return steps


def problems_with(dockerfile: str, ignored: str, root: Path = ROOT) -> list[str]:
    """Return a sentence for each mistake in a Dockerfile and the .dockerignore beside it."""
    steps = steps_of(dockerfile)
    last = max(step.stage for step in steps)
    return [
        *_base_images(steps),
        *_python_packages(steps, root),
        *_debian_packages(steps, last),
        *_user(steps, last),
        *_copies(steps, ignored, root),
        *_context(ignored),
        *_rest(steps, last),
    ]


def _base_images(steps: list[Step]) -> Iterator[str]:
    defaults = dict(step.arguments.partition("=")[::2] for step in steps if step.name == "ARG")
    for step in steps:
        if step.name == "FROM":
            image = re.sub(r"\$\{(\w+)\}", lambda match: defaults.get(match[1], ""), step.arguments.split()[0])
            tag = image.partition("@")[0].rpartition(":")[2]
            if "@sha256:" not in image and not re.search(r"\d+\.\d+\.\d+", tag):
                yield f"FROM {image}: no tag with a whole version, nor a digest"


def _python_packages(steps: list[Step], root: Path) -> Iterator[str]:
    commands = [part for step in steps if step.name == "RUN" for part in re.split("&&|;", step.arguments)]
    installs = [command for command in commands if "pip install" in command]
    if not installs:
        yield "no pip install"
    for install in installs:
        if "-c constraints.txt" not in install:
            yield f"{install.strip()!r} does not keep to constraints.txt"
    pinned = {_canonical(name) for name in re.findall(r"(.*)==", (root / "constraints.txt").read_text())}
    project = tomllib.loads((root / "pyproject.toml").read_text())
    for requirement in project["project"]["dependencies"]:
        name = re.split(r"[\[<>=~ ]", requirement)[0]
        if _canonical(name) not in pinned:
            yield f"{name} is a dependency and not in constraints.txt"
    copied = {word for step in steps if step.name == "COPY" for word in step.arguments.split()}
    for package in (name.removesuffix("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]):
        if package not in copied:
            yield f"the package {package} is not copied"


def _canonical(package: str) -> str:
    return package.lower().replace("_", "-")


def _debian_packages(steps: list[Step], last: int) -> Iterator[str]:
    commands = [step.arguments for step in steps if step.name == "RUN" and step.stage == last]
    installed = {word for command in commands for word in shlex.split(command)}
    yield from (f"{package} is not installed" for package in _NEEDED if package not in installed)


def _user(steps: list[Step], last: int) -> Iterator[str]:
    users = [step.arguments for step in steps if step.name == "USER" and step.stage == last]
    if not users or not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", users[-1]):
        yield "USER must be a number other than 0 at the end: Kubernetes cannot see that a name is not root"
        return
    names = [step.name for step in steps if step.stage == last]
    if "RUN" in names[names.index("USER") :]:
        yield "a RUN stands after USER"


def _copies(steps: list[Step], ignored: str, root: Path) -> Iterator[str]:
    for step in steps:
        if step.name == "ADD":
            yield f"ADD {step.arguments}: COPY says what it does"
        if step.name == "COPY" and "--from=" not in step.arguments:
            for source in step.arguments.split()[:-1]:
                if not (root / source).exists():
                    yield f"COPY {source}: there is no such thing in the repository"
                elif is_ignored(source, ignored):
                    yield f"COPY {source}: .dockerignore leaves it out"


def _context(ignored: str) -> Iterator[str]:
    yield from (f"{name} would be sent to the builder of the image" for name in _NEVER if not is_ignored(name, ignored))


def is_ignored(path: str, ignored: str) -> bool:
    """Tell whether .dockerignore leaves out a path; the last line that matches it or a folder above it decides."""
    parts = path.split("/")
    above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    result = False
    for line in ignored.splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith("#"):
            bare = pattern.removeprefix("!").removeprefix("**/")
            if any(fnmatch(each, bare) or fnmatch(each.rpartition("/")[2], bare) for each in above):
                result = not pattern.startswith("!")
    return result


def _rest(steps: list[Step], last: int) -> Iterator[str]:
    if not any(step.name == "HEALTHCHECK" and step.stage == last for step in steps):
        yield "no HEALTHCHECK"
    for step in steps:
        if step.name in ("ARG", "ENV") and _SECRET.search(step.arguments):
            yield f"{step.name} {step.arguments}: what is built into an image is no secret"
        if step.name == "RUN" and re.search(r"(curl|wget)[^|;&]*\|\s*(ba)?sh", step.arguments):
            yield "a script from the network is run as it comes"


def main() -> int:
    """Print the mistakes and return the exit code: 1 if there are any."""
    found = problems_with((ROOT / "k8s" / "Dockerfile").read_text(), (ROOT / ".dockerignore").read_text())
    print("\n".join(found) or "no mistake can be seen without building the image")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
