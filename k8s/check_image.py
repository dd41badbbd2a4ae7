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


_TARGETS = ("cpu", "cuda")
_CODE = ("actors", "jobs")  # sources, whose change must not move a layer of packages


@dataclass(frozen=True)
class Step:
    """An instruction with its arguments on one line, and the name of its stage ("" before the first stage)."""

    name: str
    arguments: str
    stage: str


def steps_of(dockerfile: str) -> list[Step]:
    """Return the instructions of a Dockerfile."""
    steps, stage = [], ""
    text = re.sub(r"^\s*#.*\n", "", dockerfile, flags=re.MULTILINE).replace("\\\n", " ")
    for name, arguments in re.findall(r"^\s*(\w+) +(.*\S)", text, flags=re.MULTILINE):
        if name.upper() == "FROM":
            stage = arguments.split()[-1]
        steps.append(Step(name.upper(), arguments, stage))
    return steps


def of_image(steps: list[Step], target: str) -> list[Step]:
    """Return the instructions that make an image: those of its stage, after those of the stages that it is built on."""
    bases = {step.stage: step.arguments.split()[0] for step in steps if step.name == "FROM"}
    chain = [target]
    while bases.get(chain[0]) in bases:
        chain.insert(0, bases[chain[0]])
    return [step for stage in chain for step in steps if step.stage == stage]


def problems_with(dockerfile: str, ignored: str, root: Path = ROOT) -> list[str]:
    """Return a sentence for each mistake in a Dockerfile and the .dockerignore beside it."""
    steps = steps_of(dockerfile)
    found = [
        *_base_images(steps),
        *_python_packages(steps, root),
        *_order(steps),
        *_copies(steps, ignored, root),
        *_context(ignored),
        *_secrets(steps),
    ]
    for target in _TARGETS:
        image = of_image(steps, target)
        if not image:
            found.append(f"there is no target {target}")
            continue
        found += [
            f"{target}: {problem}" for problem in (*_debian_packages(image), *_user(image), *_rest(image, target))
        ]
    return found


def _base_images(steps: list[Step]) -> Iterator[str]:
    """Yield a stage that does not begin with the image whose digest the build is given, and that none looks at it."""
    stages = {step.stage for step in steps if step.name == "FROM"}
    for step in steps:
        base = step.arguments.split()[0]
        if step.name == "FROM" and base not in stages and base != "${PYTHON_IMAGE}" and "@sha256:" not in base:
            yield f"FROM {base}: no digest, so that the same Dockerfile makes another image tomorrow"
        if step.name == "ARG" and step.stage == "" and "=" in step.arguments and "@sha256:" not in step.arguments:
            yield f"ARG {step.arguments}: a default without a digest is another image tomorrow"
    if not any(
        step.name == "RUN" and "$PYTHON_IMAGE" in step.arguments and "@sha256:*)" in step.arguments for step in steps
    ):
        yield "no stage refuses a PYTHON_IMAGE without its digest"


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
    for requirement in [*project["project"]["dependencies"], *project["build-system"]["requires"]]:
        name = re.split(r"[\[<>=~ ]", requirement)[0]
        if _canonical(name) not in pinned:
            yield f"{name} is a dependency and not in constraints.txt"
    copied = {word for step in steps if step.name == "COPY" for word in step.arguments.split()}
    for package in (name.removesuffix("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]):
        if package not in copied:
            yield f"the package {package} is not copied"


def _order(steps: list[Step]) -> Iterator[str]:
    """Yield installs that stand after copied sources: a change of code would move the layers of the packages."""
    stages = {step.stage for step in steps if step.name == "FROM"}
    for stage in stages:
        image = of_image(steps, stage)
        with_code = [
            number for number, step in enumerate(image) if step.name == "COPY" and step.arguments.startswith(_CODE)
        ]
        for step in image[min(with_code, default=len(image)) :]:
            if step.name == "RUN" and "pip install" in step.arguments and "--no-deps" not in step.arguments:
                yield f"{stage}: packages are installed after sources are copied"
            if step.name == "RUN" and "pip install" in step.arguments and "--no-build-isolation" not in step.arguments:
                yield f"{stage}: pip would build with a setuptools that constraints.txt does not pin"


def _canonical(package: str) -> str:
    return package.lower().replace("_", "-")


def _debian_packages(image: list[Step]) -> Iterator[str]:
    commands = [step.arguments for step in image if step.name == "RUN"]
    installed = {word for command in commands for word in shlex.split(command)}
    yield from (f"{package} is not installed" for package in _NEEDED if package not in installed)


def _user(image: list[Step]) -> Iterator[str]:
    users = [step.arguments for step in image if step.name == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", users[-1]):
        yield "USER must be a number other than 0 at the end: Kubernetes cannot see that a name is not root"
        return
    names = [step.name for step in image]
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


def _rest(image: list[Step], target: str) -> Iterator[str]:
    if not any(step.name == "HEALTHCHECK" for step in image):
        yield "no HEALTHCHECK"
    copied = [step.arguments for step in image if step.name == "COPY"]
    for what in (f"--from=packages-{target} /opt/venv /opt/venv", "--from=program /opt/dray/site /opt/dray/site"):
        if what not in copied:
            yield f"no COPY {what}"


def _secrets(steps: list[Step]) -> Iterator[str]:
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
