"""`dray serve --config FILE`: serve the model behind the OpenAI API until a signal comes.

After SIGTERM or Ctrl-C it accepts no new request, finishes those in flight, and ends. A second one ends it at once.
"""

import sys
from tempfile import NamedTemporaryFile
from typing import Any

import yaml

from jobs.commands import configured
from jobs.config.serve import ServeConfig, load_serve_config

main = configured("serve", ServeConfig, "jobs.work.serving:serve", lambda _, *given: load_serve_config(*given))


def application(sections: dict[str, Any]) -> Any:
    """Return the application for a configuration file of Serve, as KubeRay takes it.

    There `import_path` is `jobs.serve:application`, `args` are the sections, and Serve itself sets host and port.
    Raises ValueError or OSError for what is known to be wrong before anything starts.
    """
    from jobs.work.serving import application_of

    with NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(sections, file)
        file.flush()
        config = load_serve_config(["--config", file.name], prog="jobs.serve:application")
    return application_of(config)


if __name__ == "__main__":
    sys.exit(main())
