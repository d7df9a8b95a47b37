"""One optimizer step of a run, and one evaluation batch, as compiled functions of the state.

Axes: R rows of a batch, S positions, L layers, E experts.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from ladder.moe import router
from ladder.moe.ep.layer import Stats
from ladder.moe.mesh import DATA, EXPERT, ROWS
from ladder.moe.model import Routed, Sums, loss
from ladder.moe.params import Params, init
from ladder.moe.sharding import partitions
from ladder.spec import RunSpec
from ladder.tensors import tensors
from ladder.train.optimizer import learning_rate, optimizer

Metrics = dict[str, Array]
Step = Callable[["State", ArrayLike], tuple["State", Metrics]]
Eval = Callable[["State", ArrayLike], tuple[Float[Array, ""], Float[Array, ""]]]


class State(NamedTuple):
    """All that a run needs to go on. Nothing else is random after the start: batches are a function of
    (seed, step), and initial values of the seed."""

    params: Params
    optimizer: Any
    beta: Float[Array, "L E"]  # measured by the last step; becomes the router bias of the next
    step: Int[Array, ""]  # completed updates


def init_state(run: RunSpec, mesh: Mesh | None = None) -> State:
    """The state before the first update, laid out over `mesh` (default: on the first device)."""

    def build() -> State:
        params = init(run.model, jax.random.key(run.seed))
        beta = jnp.zeros((run.model.layers, run.model.experts), jnp.float32)
        return State(params, optimizer(run).init(params), beta, jnp.zeros((), jnp.int32))

    return jax.jit(build, out_shardings=shardings(run, mesh) if mesh else None)()


def shardings(run: RunSpec, mesh: Mesh) -> State:
    """How each array of the state lies on the mesh: what the optimizer keeps of a parameter, as that lies."""
    parts, table = partitions(run.model, run.parallel), tensors(run.model)

    def laid_out(path: tuple, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        names = [str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)]
        own = [name for name in names if name in table and table[name].shape == leaf.shape]
        return NamedSharding(mesh, parts[own[-1]] if own else P())

    return jax.tree_util.tree_map_with_path(laid_out, shapes(run))


def shapes(run: RunSpec) -> State:
    """The state without its numbers."""
    return jax.eval_shape(lambda: init_state(run))


def make_step(run: RunSpec, mesh: Mesh) -> Step:
    """A compiled step: (state, tokens int32[run.rows, context]) -> (next state, metrics).

    The state is donated. Metrics are float32 scalars on the device, of the batch that was just trained on
    and the parameters before the update; see `_metrics`.
    """
    transform = optimizer(run)

    def step(state: State, tokens: Int[Array, "R S"]) -> tuple[State, Metrics]:
        params = with_bias(state)
        gradients, sums, routing, beta = _batch(run, mesh, params, tokens)
        updates, optimizer_state = transform.update(gradients, state.optimizer, params)
        after = State(optax.apply_updates(params, updates), optimizer_state, beta, state.step + 1)  # pyright: ignore[reportArgumentType]
        return after, _metrics(run, params, gradients, updates, sums, routing, state.step)

    laid_out = shardings(run, mesh)
    return jax.jit(
        step,
        in_shardings=(laid_out, NamedSharding(mesh, ROWS)),
        out_shardings=(laid_out, NamedSharding(mesh, P())),
        donate_argnums=0,
    )


def make_eval(run: RunSpec, mesh: Mesh) -> Eval:
    """A compiled evaluation: (state, tokens int32[rows, context]) -> (summed nats, predicted tokens).

    Pure cross-entropy with the pending router bias in place, dropless; rows must divide over the mesh, and a
    row of negative tokens counts for nothing. The state is not changed: evaluation never moves the balance.
    """
    layout = run.parallel.replace(capacity=None, sender_capacity=None, remat="none")

    def on_device(params: Params, tokens: Int[Array, "R S"]) -> tuple[Array, Array]:
        _, (sums, _) = loss(params, tokens, run.model, z_loss=0.0, layout=layout)
        return jax.lax.psum((sums.ce, sums.weight), (DATA, EXPERT))

    def evaluate(state: State, tokens: Array) -> tuple[Array, Array]:
        given = (partitions(run.model, layout), ROWS)
        return jax.shard_map(on_device, mesh=mesh, in_specs=given, out_specs=P())(with_bias(state), tokens)

    return jax.jit(evaluate, in_shardings=(shardings(run, mesh), NamedSharding(mesh, ROWS)))


def compile_step(run: RunSpec, mesh: Mesh) -> Step:
    """`make_step`, compiled before it is first called."""
    tokens = jax.ShapeDtypeStruct((run.rows, run.model.context), jnp.int32)
    return make_step(run, mesh).lower(shapes(run), tokens).compile()


def compile_eval(run: RunSpec, mesh: Mesh, rows: int) -> Eval:
    """`make_eval`, compiled for this many rows before it is first called."""
    tokens = jax.ShapeDtypeStruct((rows, run.model.context), jnp.int32)
    return make_eval(run, mesh).lower(shapes(run), tokens).compile()


def with_bias(state: State) -> Params:
    """The parameters with the router bias that the last step's measurement asks for."""
    return state.params | {"router_bias": router.balancing_bias(state.beta)}


class _Routing(NamedTuple):
    """Sums over the batch."""

    score_square: Float[Array, " L"]
    stats: Stats  # stacked over layers


def _batch(
    run: RunSpec, mesh: Mesh, params: Params, tokens: Array
) -> tuple[Params, Sums, _Routing, Float[Array, "L E"]]:
    """Gradient of the mean loss over the global batch, its sums, the routing and the measured beta."""
    parts, everywhere = partitions(run.model, run.parallel), (DATA, EXPERT)
    copied = {name: (DATA,) if EXPERT in part else everywhere for name, part in parts.items()}

    def on_device(params: Params, tokens: Array):
        # Varying parameters keep their gradients local, so that one psum at the end adds them up; a
        # custom derivative of replicated weights is refused otherwise.
        params = {name: jax.lax.pcast(p, copied[name], to="varying") for name, p in params.items()}
        gradients, sums, routed = _accumulate(run, params, tokens)
        sums = jax.lax.psum(sums, everywhere)
        gradients = {name: jax.lax.psum(g, copied[name]) / sums.weight for name, g in gradients.items()}
        routing = jax.lax.psum(_Routing(routed.score_square, routed.stats), everywhere)
        return gradients, sums, routing, jax.lax.map(partial(_beta, run.model.top_k), routed.margin)

    given, back = (parts, ROWS), (parts, P(), P(), P())
    return jax.shard_map(on_device, mesh=mesh, in_specs=given, out_specs=back)(params, tokens)


def _beta(top_k: int, margin: Float[Array, "N E"]) -> Float[Array, " E"]:
    """Measured over the tokens of all devices."""
    lo, hi = router.margin_range(margin)
    lo, hi = jax.lax.pmin(lo, (DATA, EXPERT)), jax.lax.pmax(hi, (DATA, EXPERT))
    counts = jax.lax.psum(router.margin_counts(margin, lo, hi), (DATA, EXPERT))
    return router.measured_beta(counts, lo, hi, top_k)


def _accumulate(run: RunSpec, params: Params, tokens: Array) -> tuple[Params, Sums, Routed]:
    """Summed gradients, sums and routing of a device's rows, `micro_batch_rows` at a time."""
    model, layout = run.model, run.parallel
    differentiate = jax.grad(partial(loss, model=model, z_loss=model.z_loss, layout=layout), has_aux=True)
    micro = layout.micro_batch_rows or tokens.shape[0]
    if micro == tokens.shape[0]:
        gradients, (sums, routed) = differentiate(params, tokens)
        return gradients, sums, routed

    def add(total: tuple[Params, Sums], rows: Array):
        gradients, (sums, routed) = differentiate(params, rows)
        return jax.tree.map(jnp.add, total, (gradients, sums)), routed

    zero = jax.tree.map(jnp.zeros_like, (params, Sums(*[params["embed"][0, 0]] * 4)))
    (gradients, sums), routed = jax.lax.scan(add, zero, tokens.reshape(-1, micro, tokens.shape[1]))
    M, L, N, E = routed.margin.shape
    margin = routed.margin.transpose(1, 0, 2, 3).reshape(L, M * N, E)
    return gradients, sums, Routed(margin, *jax.tree.map(lambda each: each.sum(0), tuple(routed[1:])))


def _metrics(
    run: RunSpec,
    params: Params,
    gradients: Params,
    updates: Any,
    sums: Sums,
    routing: _Routing,
    step: Array,
) -> Metrics:
    """The columns of a row that the device knows.

    train_ce: mean nats a token, without z-loss; train_loss: what is minimised; logit_z: mean lse²;
    grad_norm (before the clip) and update_norm: global; lr: of the matrices; router_entropy: of the load
    over experts, mean over layers (uniform: ln E); max_over_mean_load: of the layer where it is worst;
    dead_experts: experts that no token chose, over all layers; router_logit_rms; router_bias_range: highest
    less lowest, of the layer where it is widest; padding_fraction: assignments of tokens that are padding;
    where devices share the experts max_over_mean_receiver: what one of them is asked for, of the layer where
    it is worst; where the capacity is limited drop_fraction: assignments without room, and its parts, by
    drop_sender and drop_receiver; norm/FAMILY: of the parameters of one family.
    """
    stats = routing.stats
    demand = stats.demand
    share = demand / demand.sum(axis=1, keepdims=True)
    tokens = run.batch_tokens * run.model.experts * run.model.layers
    families: dict[str, list[Array]] = {}
    for name, tensor in tensors(run.model).items():
        if tensor.trained:
            families.setdefault(tensor.family, []).append(params[name])
    bias = params["router_bias"]
    layout, extra = run.parallel, {}
    if layout.expert > 1:
        receivers = demand.reshape(len(demand), layout.expert, -1).sum(axis=2)
        extra["max_over_mean_receiver"] = jnp.max(receivers / receivers.mean(axis=1, keepdims=True))
    if layout.drops:
        extra |= {
            "drop_fraction": 1 - stats.accepted.sum() / demand.sum(),
            "drop_sender": stats.dropped_sender.sum() / demand.sum(),
            "drop_receiver": stats.dropped_receiver.sum() / demand.sum(),
        }
    return {
        "train_ce": sums.ce / sums.weight,
        "train_loss": sums.loss / sums.weight,
        "logit_z": sums.lse_square / sums.weight,
        "grad_norm": optax.tree.norm(gradients),
        "update_norm": optax.tree.norm(updates),
        "lr": learning_rate(run, run.optimizer.matrix_lr)(step),
        "router_entropy": -jnp.sum(share * jnp.log(share + 1e-6), axis=1).mean(),
        "max_over_mean_load": share.max() * run.model.experts,
        "dead_experts": jnp.sum(demand == 0).astype(jnp.float32),
        "router_logit_rms": jnp.sqrt(routing.score_square.sum() / tokens),
        "router_bias_range": jnp.max(bias.max(axis=1) - bias.min(axis=1)),
        "padding_fraction": stats.padding.sum() / (stats.padding.sum() + demand.sum()),
        **extra,
    } | {f"norm/{family}": optax.tree.norm(values) for family, values in families.items()}
