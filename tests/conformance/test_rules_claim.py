"""Claiming: flat, by the ring, by weight, many at once; the order in which jobs and lanes are served."""

from __future__ import annotations

import pytest
from wire.handwriting import Wire

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.queue import NewJob, Queue

LANES = ("GRP0NgWEfAEJ0x", "GRP0NgWEfAEJ0y", "GRP0NgWEfAEJ0z")


def fill_lanes(queue: Queue, depth: int, *lanes: str) -> None:
    queue.enqueue_many([NewJob(payload=f"{lane[-1]}{n}", group=lane) for lane in lanes for n in range(depth)])


def payloads(queue: Queue, count: int = 1) -> list[str]:
    return [job.payload.decode() for job in queue.claim(count)]


def one_by_one(queue: Queue, times: int) -> list[str]:
    return [payload for _ in range(times) for payload in payloads(queue)]


def test_an_empty_queue_gives_nothing_and_nothing_to_wait_for(queue: Queue, wire: Wire) -> None:
    claimed = queue.claim(10)
    assert (not claimed, claimed.jobs, claimed.look_again) == (True, (), None)
    assert wire.everything() == {}


def test_flat_jobs_come_in_the_order_they_were_minted(queue: Queue) -> None:
    queue.enqueue_many([str(number) for number in range(30)])
    assert payloads(queue, 10) + one_by_one(queue, 20) == [str(number) for number in range(30)]


@pytest.mark.parametrize("group", [None, LANES[0]])
def test_a_lower_priority_comes_first_and_equal_ones_in_mint_order(queue: Queue, group: str | None) -> None:
    jobs = [("low", 9), ("plain", 0), ("late plain", 0), ("urgent", -9), ("lower", 10)]
    queue.enqueue_many([NewJob(payload=payload, priority=priority, group=group) for payload, priority in jobs])
    assert one_by_one(queue, 6) == ["urgent", "plain", "late plain", "low", "lower"]


def test_the_token_counts_the_claims_of_the_job(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p")
    for token in (1, 2, 3):
        (job,) = queue.claim()
        assert job.token == token
        assert wire.row(job.id)["attempts"] == str(token)
        queue.release(job)


def test_all_jobs_of_one_claim_share_one_deadline(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p"] * 5)
    fill_lanes(queue, 3, *LANES)
    assert len(queue.claim(14, lease=77)) == 14
    assert len(set(wire.read("active").values())) == 1


@pytest.mark.parametrize("each", [1, 2, 5])
def test_lanes_are_served_in_turn_whatever_their_depth(queue: Queue, wire: Wire, each: int) -> None:
    fill_lanes(queue, 10, LANES[0])
    fill_lanes(queue, 2, *LANES[1:])
    order = [payload for _ in range(15) for payload in payloads(queue, each)]
    assert order[:6] == ["x0", "y0", "z0", "x1", "y1", "z1"]
    assert order[6:] == [f"x{number}" for number in range(2, 10)]
    assert (wire.ring(), wire.read("gactive")) == ([], {LANES[0]: "10", LANES[1]: "2", LANES[2]: "2"})


def test_the_ring_turns_one_step_per_claim_and_drops_an_empty_lane(queue: Queue, wire: Wire) -> None:
    fill_lanes(queue, 2, *LANES)
    assert payloads(queue) == ["x0"]
    assert wire.ring() == [LANES[1], LANES[2], LANES[0]]
    assert payloads(queue, 3) == ["y0", "z0", "x1"]
    assert wire.ring() == [LANES[1], LANES[2]]


@pytest.mark.parametrize("each", [1, 2, 7])
def test_flat_jobs_and_lanes_take_turns(queue: Queue, each: int) -> None:
    fill_lanes(queue, 3, *LANES[:2])
    queue.enqueue_many([f"flat{number}" for number in range(6)])
    order = [payload for _ in range(12) for payload in payloads(queue, each)]
    flat = [payload for payload in order if payload.startswith("flat")]
    assert flat == [f"flat{number}" for number in range(6)]
    # Neither side waits for the other: every second one is flat, from the first on.
    assert [payload.startswith("flat") for payload in order] == [True, False] * 6
    assert [payload for payload in order if not payload.startswith("flat")] == ["x0", "y0", "x1", "y1", "x2", "y2"]


@pytest.mark.parametrize("each", [1, 4])
def test_when_one_side_is_empty_the_other_gets_every_turn(queue: Queue, each: int) -> None:
    fill_lanes(queue, 5, LANES[0])
    queue.enqueue("flat")
    order = [payload for _ in range(6) for payload in payloads(queue, each)]
    assert sorted(order) == ["flat", "x0", "x1", "x2", "x3", "x4"]


def test_a_claim_for_many_takes_all_there_is_from_both_sides(queue: Queue, wire: Wire) -> None:
    fill_lanes(queue, 4, *LANES)
    queue.enqueue_many(["flat"] * 20)
    assert len(queue.claim(1000)) == 32
    assert wire.read("pending") is None
    assert wire.ring() == []


def test_a_weight_is_how_many_heads_a_lane_gives_in_its_turn(queue: Queue, wire: Wire) -> None:
    fill_lanes(queue, 6, *LANES[:2])
    wire.do("HSET", "gweight", LANES[0], 3)
    assert payloads(queue, 8) == ["x0", "x1", "x2", "y0", "x3", "x4", "x5", "y1"]
    assert payloads(queue, 9) == ["y2", "y3", "y4", "y5"]


@pytest.mark.parametrize("weight", [0, -1])
def test_a_weight_below_one_still_gives_one(queue: Queue, wire: Wire, weight: int) -> None:
    fill_lanes(queue, 2, *LANES[:2])
    wire.do("HSET", "gweight", LANES[0], weight)
    assert payloads(queue, 4) == ["x0", "y0", "x1", "y1"]


def test_a_weight_is_cut_by_what_was_asked_for_by_the_depth_and_by_the_limit(queue: Queue, wire: Wire) -> None:
    fill_lanes(queue, 6, LANES[0])
    wire.do("HSET", "gweight", LANES[0], 50)
    assert payloads(queue, 2) == ["x0", "x1"]
    wire.do("HSET", "glimit", LANES[0], 5)
    assert payloads(queue, 50) == ["x2", "x3", "x4"]
    assert wire.ring() == []
    wire.do("HDEL", "glimit", LANES[0])
    wire.do("RPUSH", "ring", LANES[0])
    assert payloads(queue, 50) == ["x5"]


def test_a_lane_gives_up_to_its_limit_and_leaves_the_ring(queue: Queue, wire: Wire) -> None:
    fill_lanes(queue, 5, *LANES[:2])
    wire.do("HSET", "glimit", LANES[0], 2)
    assert sorted(payloads(queue, 50)) == ["x0", "x1", "y0", "y1", "y2", "y3", "y4"]
    assert wire.running() == {LANES[0]: 2, LANES[1]: 5}
    assert wire.ring() == []
    assert len(wire.ids(f"g:{LANES[0]}:pending")) == 3


def test_an_id_whose_row_was_deleted_by_hand_is_dropped_and_not_run(queue: Queue, wire: Wire) -> None:
    ghost, lane_ghost = queue.enqueue("ghost").id, queue.enqueue("ghost", group=LANES[0]).id
    for job_id in (ghost, lane_ghost):
        wire.do("DEL", f"job:{job_id}")
    assert not queue.claim(5)
    assert wire.everything() == {} or set(wire.everything()) == {"meta"}
    queue.enqueue("real", group=LANES[0])
    assert payloads(queue, 5) == ["real"]
    assert wire.running() == {LANES[0]: 1}


def test_due_jobs_are_promoted_by_the_claim_and_come_by_their_priority(queue: Queue, wire: Wire) -> None:
    due = [queue.enqueue("due", delay=60).id, queue.enqueue("urgent", delay=60, priority=-1).id]
    lane = queue.enqueue("lane", delay=60, group=LANES[0]).id
    queue.enqueue("waiting")
    wire.come_due(*due, lane)
    assert sorted(payloads(queue, 2)) == ["lane", "urgent"]
    assert payloads(queue, 5) == ["due", "waiting"]  # in mint order, though it was scheduled for later


@pytest.mark.parametrize("count", [0, -1, 1001, 1.5, True])
def test_a_count_out_of_range_is_refused_and_nothing_is_claimed(queue: Queue, wire: Wire, count: int) -> None:
    queue.enqueue("p")
    before = wire.everything()
    with pytest.raises(InvalidArgument):
        queue.claim(count)
    with pytest.raises(InvalidArgument):
        queue.claim(1, lease=0)
    assert wire.everything() == before


def test_a_try_that_arrives_after_the_next_one_takes_and_gives_back_nothing(queue: Queue, wire: Wire) -> None:
    ids = [queue.enqueue("p").id for _ in range(6)]
    scripts, base = queue.scripts, wire.base.encode()

    def claim(count: int, nonce: str) -> list[str]:
        reply = scripts.call("job_claim", base, (count, 30_000, "key", "me", nonce))
        return [job[0].decode() for job in reply[2:]]

    assert claim(4, "1.2") == ids[:4]
    assert claim(1, "1.1") == []
    assert wire.ids("active") == ids[:4]
    assert claim(4, "1.2") == ids[:4], "the same try again is answered again"
    assert claim(2, "1.3") == ids[:2], "a further try gets what there is room for"
    assert claim(2, "2.1") == ids[2:4]
    assert claim(9, "1.3") == []
    assert wire.ids("active") == ids[:4]


def test_an_admission_that_arrives_after_the_next_call_admits_nothing(queue: Queue, wire: Wire) -> None:
    def admit(job_id: str, nonce: str) -> list[int]:
        return queue.scripts.call("job_enqueue", wire.base.encode(), ("me", nonce, job_id, "p", "now", 0, 0, "", ""))  # type: ignore[no-any-return]

    first, second = queue.new_id(), queue.new_id()
    assert admit(first, "1.1") == [1]
    queue.complete(queue.claim().jobs[0])
    assert admit(first, "1.1") == [1], "answered as before, and not done again"
    assert admit(second, "2.1") == [1]
    assert admit(first, "1.1") == []
    assert wire.ids("pending") == [second]
