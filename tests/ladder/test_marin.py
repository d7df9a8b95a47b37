"""The Marin recipe against the public project's own figures, to all their printed digits, and a closed form.

Counts, FLOPs, steps and rates as published for the rungs; where only the formula is public, what it gives.
"""

import math
from dataclasses import dataclass

import pytest

from ladder import RunSpec, SpecError
from ladder.accounting import STATE_BYTES, forward_flops, parameters, train_flops
from ladder.moe.params import abstract
from ladder.recipe import marin


@dataclass(frozen=True)
class Published:
    total: int
    active: int
    muonh: int
    adamh: int
    adam: int
    steps: int
    tokens: int
    without_head: int  # FLOPs a token, forward and backward
    with_head: int
    flops: str
    flops_with_head: str
    matrix_lr: str
    lr: str
    beta2: float
    eps: str


RUNGS = {
    512: Published(
        *(597_608_192, 20_840_448, 465_043_456, 65_667_072, 66_897_664, 3930, 16_483_614_720),
        *(213_639_168, 607_641_600, "3.52155e+18", "1.0016e+19", "0.026317", "0.006073", 0.96849, "6.07e-16"),
    ),
    768: Published(
        *(1_591_848_448, 60_555_264, 1_392_377_856, 98_500_608, 100_969_984, 11420, 47_898_951_680),
        *(553_181_184, 1_144_184_832, "2.64968e+19", "5.4805e+19"),
        *("0.015819", "0.003651", 0.96849, "1.034e-15"),
    ),
    1024: Published(
        *(3_980_116_480, 162_004_992, 3_712_483_328, 131_334_144, 136_299_008, 15276, 128_144_375_808),
        *(1_347_010_560, 2_135_015_424, "1.72612e+20", "2.7359e+20"),
        *("0.014411", "0.003326", 0.95, "1.196e-15"),
    ),
    1536: Published(
        *(11_534_398_464, 481_296_384, 11_130_372_096, 197_001_216, 207_025_152, 15128, 380_708_585_472),
        *(3_628_302_336, 4_810_309_632, "1.38133e+21", "1.8313e+21"),
        *("0.014889", "0.003436", 0.95, "1.190e-15"),
    ),
    2048: Published(
        *(27_742_902_528, 1_170_735_104, 27_199_012_864, 262_668_288, 281_221_376, 20072, 926_068_768_768),
        *(8_359_870_464, 9_935_880_192, "7.74181e+21", "9.2013e+21"),
        *("0.013422", "0.003097", 0.95, "1.371e-15"),
    ),
    6144: Published(
        *(535_477_106_688, 22_762_487_808, 533_770_272_768, 788_004_864, 918_829_056),
        *(390_251, 18_005_144_633_344, 145_008_230_400, 149_736_259_584, "2.610894e+24", "2.69602e+24"),
        *("0.003290", "0.000759", 0.95, "6.045e-15"),
    ),
}


def as_printed(number: float, like: str) -> str:
    mantissa, _, exponent = like.partition("e")
    digits = len(mantissa.partition(".")[2])
    return f"{number:.{digits}{'e' if exponent else 'f'}}"


@pytest.mark.parametrize("width", RUNGS)
def test_the_published_figures_come_out_to_their_last_digit(width):
    run, published = marin(width), RUNGS[width]
    count = parameters(run.model)
    groups = count.trained_as
    assert (count.total, count.active) == (published.total, published.active)
    assert (groups["matrix"], groups["head"]) == (published.muonh, published.adamh)
    assert groups["gate"] + groups["embedding"] + groups["vector"] == published.adam
    assert (run.steps, run.tokens) == (published.steps, published.tokens)
    assert 3 * forward_flops(run.model) == published.without_head
    assert 3 * forward_flops(run.model, lm_head=True) == published.with_head
    rates = run.optimizer
    for number, text in (
        (train_flops(run), published.flops),
        (train_flops(run, lm_head=True), published.flops_with_head),
        (rates.matrix_lr, published.matrix_lr),
        (rates.lr, published.lr),
        (rates.eps, published.eps),
    ):
        assert as_printed(number, text) == text
    assert round(rates.beta2, 5) == published.beta2
    assert (rates.kind, rates.momentum, rates.beta1, rates.weight_decay) == ("muonh", 0.95, 0.9, 0)
    assert (run.schedule.warmup, run.schedule.final, rates.clip_norm) == (0.01, 0.05, None)


@pytest.mark.parametrize("width", RUNGS)
def test_parameters_in_closed_form_and_as_initialised(width):
    d, L = width, marin(width).model.layers
    heads, E, K, V, half = d // 128, 384, 8, 128_256, d // 2
    kv = max(1, heads // 4, heads // 8) * 128
    attention, latent, shared = 2 * d * heads * 128 + 2 * d * kv, 2 * d * half, 6 * d * half
    big = attention + d * E + latent + 3 * E * half * half + shared
    small = d * heads + E + half + 2 * d + 4 * (kv + 2 * d)
    count = parameters(marin(width).model)
    assert count.total == L * (big + small) + (2 * L + 2) * 2 * d * 128 + 2 * V * d + 2 * d
    assert count.active == L * (attention + d * E + latent + 3 * K * half * half + shared)
    assert count.total == sum(math.prod(x.shape) for x in abstract(marin(width).model).values())


def test_true_globals_cost_more_where_four_does_not_divide_the_layers():
    for width, published in {512: "3.73017e+18", 2048: "7.78287e+21"}.items():
        run = marin(width)
        assert f"{3 * forward_flops(run.model, true_globals=True) * run.tokens:.5e}" == published
    for width in (768, 1024, 1536, 6144):
        model = marin(width).model
        assert forward_flops(model) == forward_flops(model, true_globals=True)


def test_optimizer_state_of_all_devices_as_published():
    """In GB; the full run's is reported as 2.149 TB, its weights as 2.142 TB."""
    for width, gb in {512: 2.9, 768: 7.2, 1024: 17.0, 1536: 47.8, 2048: 113.1, 6144: 2149}.items():
        groups = parameters(marin(width).model).trained_as
        state = sum(STATE_BYTES["muonh"][group] * count for group, count in groups.items())
        assert state / 1e9 == pytest.approx(gb, abs=0.5 if width == 6144 else 0.05)
    assert round(4 * parameters(marin(6144).model).total / 1e12, 3) == 2.142


def test_the_dropped_rung_reproduces_its_published_steps():
    run = marin(384)
    assert parameters(run.model).active == 8_060_928
    assert (run.rows, run.steps) == (128, 12_162)


def test_the_other_published_batch_of_the_smallest_rung():
    run = marin(512, rows=256)
    assert run.steps == 15_721 and f"{run.optimizer.matrix_lr:.5f}" == "0.01316"
    assert round(run.optimizer.beta2, 5) == 0.99203


@pytest.mark.parametrize(("width", "replicas"), [(768, 1), (1024, 2), (1536, 6), (2048, 11), (6144, 11)])
def test_a_rack_is_a_replica_and_a_device_has_sixteen_rows(width, replicas):
    run = marin(width)
    assert (run.parallel.data, run.parallel.expert) == (replicas, 64)
    assert run.rows == 16 * run.parallel.devices and run.model.experts % 64 == 0


def test_a_longer_context_keeps_the_tokens_and_all_else_of_the_recipe():
    run, long = marin(6144), marin(6144, context=65_536)
    assert (long.batch_tokens, long.steps, long.rows) == (run.batch_tokens, run.steps, 704)
    assert long.optimizer == run.optimizer and long.model.replace(context=4096) == run.model


@pytest.mark.parametrize(("width", "layers"), [(1280, 14), (128, 2)])
def test_other_widths_take_their_layers_and_batch(width, layers):
    run = marin(width, seed=3, layers=layers, rows=64)
    assert (run.model.layers, run.rows, run.seed) == (layers, 64, 3)
    assert run.tokens / parameters(run.model).active == pytest.approx(791, rel=0.001)
    assert RunSpec.from_json(run.to_json()).fingerprint == run.fingerprint
    assert {run.model.kv_heads, run.model.global_kv_heads} == {max(1, width // 512), max(1, width // 1024)}


def test_what_the_recipe_cannot_know_is_asked_for():
    with pytest.raises(SpecError, match=r"width=1280 is no published rung.*give layers= and rows="):
        marin(1280, layers=14)
    for width in (0, -128, 100, 768.0):
        with pytest.raises(SpecError, match="128 channels, use a positive multiple"):
            marin(width)
