"""A hook of MkDocs that makes the site from the tracked files, each at its path in the repository.

MkDocs alone takes the files below one folder. With this hook README.md, docs/ and the README files of other folders are
pages of one site, and a relative link means the same file on the site and in the repository.
"""

import subprocess
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
_PUBLISHED = frozenset((".md", ".css", ".png", ".svg", ".sh", ".yaml", ".csv", ".ipynb"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the theme's files and, in place of those below `docs_dir`, the tracked files that pages can link to."""
    of_the_theme = [file for file in files if not str(file.abs_src_path).startswith(config.docs_dir)]
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    published = [name for name in names if Path(name).suffix in _PUBLISHED and (ROOT / name).is_file()]
    return Files(of_the_theme + [File.generated(config, name, abs_src_path=str(ROOT / name)) for name in published])
