"""Prints the command by which vLLM serves a target with a draft that was trained here.

`python -m examples.recipes.vllm_serve TARGET DRAFT`, where DRAFT is a draft model or a head, such as `dray train-draft`
writes. vLLM verifies by rejection, so its texts follow the target's distribution, and are not Dray's token for token.
"""

import json
import shlex
import sys

from decoding.heads.format.folder import is_head, read_head_config

_METHODS = {"eagle3": "eagle3", "peagle": "eagle3", "dflash": "dflash", "dflash2": "dflash", "dspark": "dspark"}


def command(target: str, draft: str, num_speculative_tokens: int = 4) -> list[str]:
    """Return the words of the command. Raises ValueError for a folder that is no draft."""
    method = _METHODS[read_head_config(draft).kind] if is_head(draft) else "draft_model"
    config = {"method": method, "model": draft, "num_speculative_tokens": num_speculative_tokens}
    return ["vllm", "serve", target, "--speculative-config", json.dumps(config)]


if __name__ == "__main__":
    print(shlex.join(command(*sys.argv[1:3])))
