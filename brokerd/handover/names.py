"""Names of RocketMQ's own topics and groups, as far as a hand-over looks at them (SF-106)."""

from __future__ import annotations

from typing import Final

from gantrymq.shm.properties import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

TIMERS: Final = (TIMER_TOPIC, 0)
#: Their records wait to be appended to another topic.
PARKING: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})
HALVES: Final = (HALF_TOPIC, 0)
OPS: Final = (OP_TOPIC, 0)
REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
