"""Who may join a group, and what groups may have: the rules, and what a refusal says.

A session names topics and queues by their numbers on the board, whatever it was told: so `Join` and
`Reset` are judged here. All other requests name queues by leases, which follow from a `Join`.
"""

from __future__ import annotations

from gantrymq.shm import limits
from gantrymq.shm.groupwire import ASSIGNMENTS, SUBSCRIPTION_CHARACTERS, Join, bad_assignment
from gantrymq.shm.properties import HIDDEN_TOPICS, SYSTEM_GROUP_PREFIX
from gantrymq.workers.groups.membership import Member, Membership, Topics


def fault_of(membership: Membership, session: int, request: Join) -> str:
    """Why a session may not join as it asks; empty if it may."""
    fault = name_fault(request.group) or _fault_of_topics(membership.topics, request)
    if fault:
        return fault
    other = membership.group_of.get(session, request.group)
    if other != request.group:
        return f"this session is in group {other!r} already"
    if request.assignment not in ("", *ASSIGNMENTS):
        return bad_assignment(request.assignment)
    return _difference(membership, session, request)


def name_fault(name: str) -> str:
    """What is wrong with a group's name (CQ-100); empty if nothing is."""
    legal = all(c.isascii() and (c.isalnum() or c in "_-%|") for c in name)
    if not name or not legal or len(name.encode()) > limits.GROUP_BYTES_MAX:
        return f"{name!r} is no group name: letters, digits and _-%| only"
    if name.startswith(SYSTEM_GROUP_PREFIX):
        return f"groups {SYSTEM_GROUP_PREFIX}... are the broker's own: take another name"
    return ""


def _fault_of_topics(topics: Topics, request: Join) -> str:
    unknown = [slot for slot in request.topics if slot not in topics.by_slot]
    if unknown or not request.topics:
        return f"topic slots {unknown} do not exist" if unknown else "no topic subscribed"
    faults = (topic_fault(topics.by_slot[slot].name) for slot in request.topics)
    return next(filter(None, faults), "")


def topic_fault(name: str) -> str:
    """Why no group may have a topic; empty if groups may.

    A copy of what waits there would count as its delivery, or as its commit.
    """
    if name in HIDDEN_TOPICS:
        return f"topic {name} is the broker's own: no group has it"
    return ""


def _difference(membership: Membership, session: int, request: Join) -> str:
    """All members of a group see the same messages: a newcomer with other wishes is refused.

    Who was there first stays; once it is gone the newcomer may join with what it wants.
    """
    group = membership.groups.get(request.group)
    for number, member in sorted(group.members.items()) if group else ():
        if number == session:
            continue
        if "" not in (member.assignment, request.assignment) and (
            member.assignment != request.assignment
        ):
            return (
                f"group {request.group!r} has a member (session {number}) with assignment"
                f" {member.assignment!r}; this one wants {request.assignment!r}. Give all members"
                " the same, or use another group"
            )
        if _sees_others(member, request):
            return (
                f"group {request.group!r} has a member (session {number}) that subscribes"
                f" {_shown(member.subscription)}; this one wants {_shown(request.subscription)}."
                " Give all members the same subscription, or use another group"
            )
    return ""


def _sees_others(member: Member, request: Join) -> bool:
    """Whether two members differ in topics, filters, or in what they do with failed messages."""
    if request.digest and member.digest not in (0, request.digest):
        return True
    if not (request.max_attempts and member.max_attempts):
        return False  # one of them pulls: it sends nothing back
    terms = (member.max_attempts, member.orderly)
    return terms != (request.max_attempts, request.orderly)


def _shown(text: str) -> str:
    return text[:SUBSCRIPTION_CHARACTERS] or "to something else"
