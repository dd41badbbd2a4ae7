"""Prints the command by which vLLM serves a target with a draft that was trained here.

`python -m examples.recipes.vllm_serve TARGET DRAFT`, where DRAFT is a draft model or a head, such as `dray train-draft`
writes. vLLM verifies by rejection, so its texts follow the target's distribution, and are not Dray's token for token.
"""

import json
import shlex
import sys

from actors.vllm.draft_method import method_of_head
from decoding.heads.format.folder import is_assistant, is_head, read_head_config


def command(target: str, draft: str, num_speculative_tokens: int = 4) -> list[str]:
    """Return the words of the command. Raises ValueError for a folder that is no draft."""
    if is_head(draft) and not is_assistant(draft):
        read_head_config(draft)  # refuses what is no head
    method = method_of_head(draft) if is_head(draft) else {"method": "draft_model"}
    config = {**method, "model": draft, "num_speculative_tokens": num_speculative_tokens}
    return ["vllm", "serve", target, "--speculative-config", json.dumps(config)]


if __name__ == "__main__":
    print(shlex.join(command(*sys.argv[1:3])))
