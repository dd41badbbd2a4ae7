"""A shared lock is held by many tasks together, or by one alone."""

import asyncio

from actors.units.workplace import SharedLock


def test_no_other_task_holds_an_exclusive_lock():
    async def scenario() -> list[tuple[str, int]]:
        lock, inside, seen = SharedLock(), 0, []

        async def visit(name: str) -> None:
            nonlocal inside
            async with lock.exclusive() if name == "alone" else lock.shared():
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


def test_a_task_that_waits_for_the_exclusive_lock_is_not_overtaken():
    async def scenario() -> list[str]:
        lock, order = SharedLock(), []

        async def visit(name: str, manager: object) -> None:
            async with manager:  # type: ignore[attr-defined]
                order.append(name)
                await asyncio.sleep(0)

        first = asyncio.create_task(visit("first", lock.shared()))
        await asyncio.sleep(0)
        alone = asyncio.create_task(visit("alone", lock.exclusive()))
        await asyncio.sleep(0)
        later = asyncio.create_task(visit("later", lock.shared()))
        await asyncio.gather(first, alone, later)
        return order

    assert asyncio.run(scenario()) == ["first", "alone", "later"]


def test_a_task_that_gives_up_waiting_for_the_exclusive_lock_blocks_no_other():
    async def scenario() -> None:
        lock = SharedLock()

        async def alone() -> None:
            async with lock.exclusive():
                raise AssertionError("never gets in")

        async def enter() -> None:
            async with lock.shared():
                pass

        async with lock.shared():
            waiting = asyncio.create_task(alone())
            await asyncio.sleep(0)
            later = asyncio.create_task(enter())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait_for(later, timeout=5)

    asyncio.run(scenario())
