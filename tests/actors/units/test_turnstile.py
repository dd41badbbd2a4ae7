"""Many at once, or one alone."""

import asyncio

from actors.units.turnstile import Turnstile


def test_nobody_is_inside_with_who_is_alone() -> None:
    async def scenario() -> list[tuple[str, int]]:
        turnstile, inside, seen = Turnstile(), 0, []

        async def visit(name: str) -> None:
            nonlocal inside
            async with turnstile.alone() if name == "alone" else turnstile.together():
                inside += 1
                for _ in range(5):
                    await asyncio.sleep(0)
                    seen.append((name, inside))
                inside -= 1

        await asyncio.gather(*(visit(name) for name in ("a", "b", "alone", "c", "alone", "d")))
        return seen

    seen = asyncio.run(scenario())
    assert len(seen) == 30
    assert {inside for name, inside in seen if name == "alone"} == {1}
    assert max(inside for _, inside in seen) >= 2


def test_who_waits_to_be_alone_is_not_overtaken() -> None:
    async def scenario() -> list[str]:
        turnstile, order = Turnstile(), []

        async def visit(name: str, manager: object) -> None:
            async with manager:  # type: ignore[attr-defined]
                order.append(name)
                await asyncio.sleep(0)

        first = asyncio.create_task(visit("first", turnstile.together()))
        await asyncio.sleep(0)
        alone = asyncio.create_task(visit("alone", turnstile.alone()))
        await asyncio.sleep(0)
        later = asyncio.create_task(visit("later", turnstile.together()))
        await asyncio.gather(first, alone, later)
        return order

    assert asyncio.run(scenario()) == ["first", "alone", "later"]


def test_who_gives_up_waiting_to_be_alone_keeps_nobody_out() -> None:
    async def scenario() -> None:
        turnstile = Turnstile()

        async def alone() -> None:
            async with turnstile.alone():
                raise AssertionError("never gets in")

        async def enter() -> None:
            async with turnstile.together():
                pass

        async with turnstile.together():
            waiting = asyncio.create_task(alone())
            await asyncio.sleep(0)
            later = asyncio.create_task(enter())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait_for(later, timeout=5)

    asyncio.run(scenario())
