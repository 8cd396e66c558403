"""Give what consumer groups have given up back to them."""

from __future__ import annotations

import logging

from echomq_tasks.bus.groups import check_group, dead_log
from echomq_tasks.bus.log import Log
from echomq_tasks.bus.member import LONG_IDLE
from echomq_tasks.scripts.arguments import EXACT, whole

_log = logging.getLogger(__name__)

#: Dead records that one call of the script looks at.
_PAGE = 50
#: The consumer that holds them until a member takes them over.
_HOLDER = "dead.replay"


def replay_dead(log: Log, group: str | None = None, limit: int | None = None) -> int:
    """Give buried entries back to the groups that gave them up; see :meth:`echomq_tasks.bus.Bus.replay_dead`.

    Raises:
      InvalidName, InvalidArgument: when an argument is not allowed; nothing was sent.
      WrongState: when the key of the dead log holds something else.
      ServerError: when the server cannot be asked, or its memory is full.
    """
    dead = dead_log(log.name)
    only = "" if group is None else check_group(group)
    left = EXACT if limit is None else whole(limit, "limit", 0)
    behind, given, staying = "", 0, 0
    while left:
        args = (log.name, only, behind, _PAGE, left, _HOLDER, LONG_IDLE)
        # Not repeated: what is counted as given back would be missing from the second answer.
        cursor, back, stay = log.scripts.call("group_replay", log.base, args, repeat=False)
        given, staying, left = given + back, staying + stay, left - back
        behind = cursor.decode()
        if not behind:
            break
    if staying:
        _log.warning(
            "%d records of the log %s stay there: %s has their entries no more, or their group is gone",
            *(staying, dead, log.name),
        )
    return given
