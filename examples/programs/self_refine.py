"""Self-refinement (Madaan et al., arXiv 2303.17651): the model writes, says what is wrong, and writes again.

`dray generate --config examples/configs/self_refine.yaml`
"""

from typing import Any


async def refine(generate: Any, row: dict[str, Any]) -> dict[str, str]:
    """Return the first text, the criticism and the second text."""
    messages = list(row.get("messages") or [{"role": "user", "content": row["prompt"]}])
    first = await generate(messages)
    messages += [first.message, {"role": "user", "content": "What is wrong with it? Answer in one sentence."}]
    criticism = await generate(messages, {"max_tokens": 40})
    messages += [criticism.message, {"role": "user", "content": "Write it again without that."}]
    second = await generate(messages)
    return {"first": first.text, "criticism": criticism.text, "second": second.text}
