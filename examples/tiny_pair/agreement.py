"""Prints how well the draft agrees with the target, by kind of text, on text that the target wrote.

    python -m examples.tiny_pair.agreement

Two numbers, both averages over the tokens that the target generated from `examples/prompts.jsonl`: how often the two
models' likeliest tokens are the same, on greedy text; and the sum over the vocabulary of min(p, q), on text sampled at
temperature 1, which is the chance that rejection sampling accepts a draft token (Leviathan et al. 2211.17192).

B sequences, T positions, N generated positions, V vocabulary.
"""

import json
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from examples.tiny_pair.corpus import KINDS

PAIR = Path(__file__).parent
PROMPTS = PAIR.parent / "prompts.jsonl"
MAX_NEW_TOKENS = 256
ROW = "| {} | {:.0f} | {:.0%} | {:.3f} | {:.3f} |"


def prompts_by_kind(tokenizer: PreTrainedTokenizerFast) -> dict[str, list[str]]:
    """Return the text of the bundled prompts, chat ones rendered, under their kinds."""
    texts: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for line in PROMPTS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "messages" in row:
            rendered = tokenizer.apply_chat_template(row["messages"], tokenize=False, add_generation_prompt=True)
            texts[row["kind"]].append(str(rendered))
        else:
            texts[row["kind"]].append(row["prompt"])
    return texts


def generate(
    target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, texts: list[str], temperature: float
) -> list[tuple[list[int], list[int]]]:
    """Return (prompt ids, generated ids) for each text; greedy at temperature 0; an end token counts."""
    batch = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt", return_token_type_ids=False)
    how = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    out_BT = target.generate(**batch, **how, max_new_tokens=MAX_NEW_TOKENS)
    ends = set(target.generation_config.eos_token_id)
    pairs = []
    for text, ids_T in zip(texts, out_BT[:, batch["input_ids"].shape[1] :], strict=True):
        ids = ids_T.tolist()
        first_end = next((i for i, token in enumerate(ids) if token in ends), len(ids) - 1)
        pairs.append((tokenizer.encode(text), ids[: first_end + 1]))
    return pairs


def logits_of_output(model: LlamaForCausalLM, prompt: list[int], output: list[int]) -> torch.Tensor:
    """Return logits_NV: the model's scores for each token of the output, given everything before it."""
    logits_TV: torch.Tensor = model(input_ids=torch.tensor([prompt + output])).logits[0]
    return logits_TV[len(prompt) - 1 : -1]


def main() -> None:
    torch.set_num_threads(2)
    torch.manual_seed(0)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(PAIR / "target")
    target, draft = (LlamaForCausalLM.from_pretrained(PAIR / name, dtype=torch.float32) for name in ("target", "draft"))
    print("| kind | tokens per answer | ended by itself | greedy agreement | overlap at T=1 |")
    print("|---|---|---|---|---|")
    rows = []
    with torch.inference_mode():
        for kind, texts in prompts_by_kind(tokenizer).items():
            greedy, sampled = (generate(target, tokenizer, texts, temperature) for temperature in (0.0, 1.0))
            agreements = [
                logits_of_output(target, *pair).argmax(-1) == logits_of_output(draft, *pair).argmax(-1)
                for pair in greedy
            ]
            overlaps = [
                torch.minimum(*(logits_of_output(model, *pair).softmax(-1) for model in (target, draft))).sum(-1)
                for pair in sampled
            ]
            lengths = torch.tensor([float(len(output)) for _, output in sampled])
            columns = (lengths, lengths < MAX_NEW_TOKENS, torch.cat(agreements), torch.cat(overlaps))
            rows.append([column.float().mean() for column in columns])
            print(ROW.format(kind, *rows[-1]), flush=True)
    print(ROW.format("mean of the kinds", *torch.tensor(rows).mean(0)))


if __name__ == "__main__":
    main()
