"""Which action a policy lets follow from a verdict, and that it does not do more than it may."""

import copy

import pytest

from analysis.monitor.evidence import evidence
from analysis.monitor.policy import POLICY, Decisions, PolicyError, checked, outcome, sha256
from analysis.monitor.states import Verdict


def verdict(state, step, code="loss_runaway"):
    found = evidence("spike", code, "loss", state, 1, "rows", {}, "")
    return Verdict(state, ("why",), "continue", (found,), step, "next")


def with_rule(**rule):
    policy = copy.deepcopy(POLICY)
    policy["rules"].insert(0, {"code": None, "most": None, "within": 1.0} | rule)
    return policy


def test_the_default_stops_a_runaway_and_keeps_a_checkpoint_of_a_precursor():
    decisions = Decisions(POLICY, 10_000)
    assert [decisions.decide(verdict(s, 100))[0] for s in ("normal", "watch", "precursor", "runaway")] == [
        "continue", "continue", "checkpoint", "stop",
    ]  # fmt: skip


def test_a_nan_is_skipped_at_most_three_times_and_then_stops():
    rule = {"state": "runaway", "code": "not_finite", "action": "skip", "within": 1.0}
    decisions = Decisions(with_rule(**rule, most=3), 10_000)
    taken = [decisions.decide(verdict("runaway", 5000 + k, "not_finite"))[0] for k in range(4)]
    assert taken == ["skip"] * 3 + ["stop"]
    with pytest.raises(PolicyError, match="at most 3"):
        checked(with_rule(**rule, most=4))


def test_a_rule_that_engages_too_often_switches_itself_off_and_says_so():
    decisions = Decisions(with_rule(state="precursor", action="clip"), 10_000)
    taken = [decisions.decide(verdict("precursor", 1000)) for _ in range(7)]
    assert [action for action, _ in taken] == ["clip"] * 5 + ["checkpoint"] * 2  # .5 % of 1,000 steps
    assert "switched itself off: 0.50% of steps" in taken[-1][1]


def test_three_roll_backs_within_5_percent_are_a_persons_matter():
    decisions = Decisions(with_rule(state="runaway", action="roll_back"), 10_000)
    taken = [decisions.decide(verdict("runaway", step))[0] for step in (1000, 1100, 1200, 1300, 2000)]
    assert taken == ["roll_back"] * 3 + ["ask", "roll_back"]


def test_a_policy_without_a_last_word_is_refused():
    policy = copy.deepcopy(POLICY)
    policy["rules"] = policy["rules"][:-1]
    with pytest.raises(PolicyError, match="for state normal"):
        checked(policy)
    with pytest.raises(PolicyError, match="rule 0"):
        checked(with_rule(state="runaway", action="pray"))


def test_decisions_go_on_after_a_restart_and_a_policy_has_a_hash():
    first = Decisions(with_rule(state="runaway", action="roll_back"), 10_000)
    for step in (1000, 1100, 1200):
        first.decide(verdict("runaway", step))
    again = Decisions(first.policy, 10_000, first.state_dict())
    assert again.decide(verdict("runaway", 1300))[0] == "ask"
    assert sha256(POLICY) != sha256(first.policy)


def test_an_action_that_did_nothing_is_reported_failed():
    assert outcome("roll_back", {"step": 900}, {"step": 800})[0]
    held, words = outcome("roll_back", {"step": 900}, {"step": 900})
    assert not held and words == "roll_back FAILED: not so that the step went back (step 900 -> 900)"
