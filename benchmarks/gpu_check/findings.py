"""Findings: what a part's measurements say, beside what is wanted of a GPU. Every threshold of the check-up is here."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu_check.results import Kept

Measured = Mapping[str, Any]
Judge = Callable[[Measured, Kept], Iterator["Finding"]]

LEAST_VERSIONS = {"torch": (2, 11), "triton": (3, 6), "transformers": (5, 17)}
PLAIN_OF_IDEAL = {128: 0.80}  # by batch; of what the GPU's limits allow for the rounds that ran
SPECULATION = {32: 1.6, 64: 1.5, 128: 1.3}  # adaptive drafts over plain decoding, at an acceptance of 0.8
TOP_P_OF_GREEDY = 0.95  # of its rounds a second
RAGGED_OF_EQUAL = 0.90  # of the rounds a second with prompts of one length
MOST_WAITS, MOST_LAUNCHES = 1.0, 60.0  # of the host for the device, and outside recordings, a round
MOST_LOST = 0.05  # of a kernel's time, by a tile that is not the fastest
_MOST_NAMED = 3


@dataclass(frozen=True)
class Finding:
    """One figure or fact, and whether it is as wanted."""

    what: str
    found: str
    wanted: str = ""  # nothing, for a figure that is only told
    is_met: bool | None = None  # None: nothing is wanted, or it is not known


def of_environment(measured: Measured, kept: Kept) -> Iterator[Finding]:
    """Tell the GPU and the versions; those must be recent enough."""
    if gpu := measured.get("gpu"):
        speed = f"copies {gpu['copy_gb_s']:,} GB/s, reads {gpu['read_gb_s']:,} GB/s"
        yield Finding("GPU", f"{gpu['name']}, {gpu['memory_gib']} GiB, {speed}")
        yield Finding("driver", f"{measured['nvidia_smi'] or 'unknown'}; CUDA {gpu['cuda']}, cuDNN {gpu['cudnn']}")
    else:
        yield Finding("GPU", "none")
    versions: Mapping[str, str | None] = measured["versions"]
    told = ", ".join(f"{name} {version or 'absent'}" for name, version in versions.items())
    wanted = ", ".join(f"{name} {'.'.join(map(str, least))}" for name, least in LEAST_VERSIONS.items())
    recent = all(_numbers(versions[name]) >= least for name, least in LEAST_VERSIONS.items())
    yield Finding("versions", told, f"at least {wanted}", recent)


def of_tests(measured: Measured, kept: Kept) -> Iterator[Finding]:
    """Tell how many tests passed: all that were collected, or could not run here."""
    failed: Sequence[str] = measured["failed"]
    passed, skipped, collected = measured["passed"], measured["skipped"], measured["collected"]
    found = f"{passed} passed, {skipped} skipped, {len(failed)} failed of {collected}"
    is_met: bool | None = not failed and passed + skipped == collected
    if is_met and not passed:
        is_met = None
    yield Finding("tests", found, "none fails, all end", is_met)
    for name in failed[:_MOST_NAMED]:
        yield Finding("failed", name.removeprefix("tests/gpu/"), "", False)


def of_texts(measured: Measured, kept: Kept) -> Iterator[Finding]:
    """Tell the share of rows whose text is plain decoding's, and transformers', of each configuration.

    The library's products promise nothing, so nothing is wanted of them.
    """
    if "results" not in measured:
        yield _so_far(measured)
        return
    promises = measured["options"].get("exact") != "off"
    for field, name in (("equal_to_plain", "plain decoding"), ("equal_to_transformers", "transformers")):
        shares = {
            f"{result['name']}@{result['batch']}": result[field]
            for result in measured["results"]
            if result[field] is not None
        }
        if not shares:
            continue
        others = [f"{label} {share:.1%}" for label, share in shares.items() if share < 1]
        found = f"{'all' if not others else ', '.join(others)} of {len(shares)} configurations"
        what = f"rows as {name} writes them"
        yield Finding(what, found, "100 %", not others) if promises else Finding(what, found)


def of_pair(measured: Measured, kept: Kept) -> Iterator[Finding]:
    """Tell how often the draft of the pair agrees with its target."""
    yield Finding("acceptance of the pair", f"{measured['acceptance']:.2f}")


def of_speed(measured: Measured, kept: Kept) -> Iterator[Finding]:
    """Tell the speeds at one batch, and compare them with the ideal and with plain decoding."""
    yield from _speeds(measured)
    if "results" not in measured:
        return
    for result in measured["results"]:
        figures, batch = result["figures"], result["batch"]
        if result["name"] == "plain" and batch in PLAIN_OF_IDEAL:
            share = figures["round_roofline_share"]
            yield _at_least(f"plain@{batch} of its ideal", share, PLAIN_OF_IDEAL[batch], ".0%")
        if result["name"] == "adaptive" and batch in SPECULATION:
            yield _at_least(f"adaptive@{batch} over plain", figures["speedup"], SPECULATION[batch], ".2f")
    yield from of_texts(measured, kept)


def of_speed_beside(other: str, what: str, least: float | None) -> Judge:
    """Return the judge of speeds that are compared with those of another part, round for round."""

    def judge(measured: Measured, kept: Kept) -> Iterator[Finding]:
        yield from _speeds(measured)
        yield from of_texts(measured, kept) if "results" in measured else ()
        before = kept[other].measured if other in kept else None
        for label, rate in _rounds_a_second(measured).items():
            base = _rounds_a_second(before or {}).get(label)
            ratio = rate / base if base else None
            name = f"{label}, rounds/s over {what}"
            if least is None:
                yield Finding(name, "not known" if ratio is None else f"{ratio:.2f}")
            else:
                yield _at_least(name, ratio, least, ".2f")

    return judge


def of_kernels(measured: Measured, kept: Kept) -> Iterator[Finding]:
    """Tell how our products and attention do beside the library and the memory, and where another tile is faster."""
    for each in measured["products"]:
        beside = f"{each['present']}, by the clock; {each['library_us']:.0f} us, the library"
        yield from _of_tiles(f"{each['product']}, {each['lines']} lines", each, beside)
    others = [f"{each['product']}@{each['lines']}" for each in measured["products"] if _has_other_bits(each)]
    found = ", ".join(others[:_MOST_NAMED]) or "none"
    yield Finding("products whose tiles give other bits", found, "none", not others)
    for each in measured["attention"]:
        speed = f"{each['gb'] / each['present_us'] * 1e6:,.0f} GB/s"
        yield from _of_tiles(f"attention, {each['rows']} x {each['tokens']}", each, speed)


def _has_other_bits(product: Measured) -> bool:
    return not all(tile.get("is_same", True) for tile in product["tiles"])


def _of_tiles(what: str, measured: Measured, beside: str) -> Iterator[Finding]:
    best, present = measured["tiles"][0], measured["present_us"]
    others = "" if present <= (1 + MOST_LOST) * best["us"] else f"; {best['us']:.0f} us with {best['tile']}"
    yield Finding(what, f"{present:.0f} us; {beside}{others}")


def of_profile(measured: Measured, kept: Kept) -> Iterator[Finding]:
    """Tell where the time of a round goes, without a draft and with one."""
    for profile in measured["profiles"]:
        yield from _of_rounds(profile, f"{profile['drafted']} drafted")


def _of_rounds(measured: Measured, what: str) -> Iterator[Finding]:
    milliseconds, busy = measured["seconds_per_round"] * 1e3, measured["busy_share"]
    speed = measured["tokens_per_round"] / measured["seconds_per_round"]
    yield Finding(f"{what}, a round", f"{milliseconds:.2f} ms, {speed:,.0f} tokens/s, the GPU works for {busy:.0%}")
    if (predicted := measured.get("predicted_seconds")) is not None:
        more = measured["seconds_per_round"] / predicted - 1
        yield Finding("predicted by benchmarks.roofline", f"{predicted * 1e3:.2f} ms; it takes {more:+.0%}")
    yield Finding(f"{what}, prompts", f"{measured['prompt_tokens_per_second']:,.0f} tokens/s")
    waits, launches = measured["waits_per_round"], measured["launches_per_round"]
    most = MOST_WAITS + 1 / measured["num_rounds"]  # the profiler waits once, at its end
    yield Finding("waits of the host a round", f"{waits:.1f}", f"<= {MOST_WAITS:g}", waits <= most)
    beside = f"{launches:.1f}, and {measured['replays_per_round']:.1f} recordings"
    yield Finding("launches a round", beside, f"<= {MOST_LAUNCHES:g}", launches <= MOST_LAUNCHES)
    for kernel in measured["kernels"][:6]:
        yield Finding(f"{kernel['share']:.0%} of its work", f"{kernel['name']} ({kernel['per_round']:.0f} a round)")


def _speeds(measured: Measured) -> Iterator[Finding]:
    if "results" not in measured:
        yield _so_far(measured)
        return
    for result in measured["results"]:
        label = f"{result['name']}@{result['batch']}"
        figures = result["figures"]
        told = [f"{figures['tokens_per_second']:,.0f} tokens/s"]
        if figures["acceptance_rate"] is not None:
            told.append(f"{figures['acceptance_rate']:.2f} accepted")
        if figures["efficiency"] is not None:
            told.append(f"efficiency {figures['efficiency']:.2f}")
        yield Finding(label, ", ".join(told))


def _so_far(measured: Measured) -> Finding:
    speeds = measured["speeds_so_far"]
    return Finding(
        "before it was stopped", ", ".join(f"{label} {speed:,.0f} tokens/s" for label, speed in speeds.items())
    )


def _rounds_a_second(measured: Measured) -> dict[str, float]:
    """Return by label how many rounds of a row there were a second: the speed, whatever was accepted."""
    return {
        f"{result['name']}@{result['batch']}": figures["tokens_per_second"] / figures["tokens_per_round"]
        for result in measured.get("results", ())
        if (figures := result["figures"])["tokens_per_second"] and figures["tokens_per_round"]
    }


def _at_least(what: str, found: float | None, least: float, style: str) -> Finding:
    wanted = f">= {least:{style}}"
    if found is None:
        return Finding(what, "not known", wanted, None)
    return Finding(what, f"{found:{style}}", wanted, found >= least)


def _numbers(version: str | None) -> tuple[int, ...]:
    """Return the first two numbers of a version, (0, 0) of none."""
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else (0, 0)
