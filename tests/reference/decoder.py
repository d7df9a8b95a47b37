"""The slow, obvious twin of ladder.moe: one row, one position, one head, one expert at a time.

`xp` is the array module: numpy for values, jax.numpy with 64 bits for gradients. Arrays are never written
into. Names follow the parameter table in ladder.tensors.

A derivative cannot look at values, so it is told which experts each token uses: `chosen` [layers][tokens],
as a run in numpy returned it.
"""

import math

ENDS = ("embed", "final", "lm_head")  # what is not stacked over layers begins with one of these


def rms(x, gain=None, eps=1e-5):
    y = x / ((x * x).mean() + eps) ** 0.5
    return y if gain is None else y * gain


def sigmoid(x, xp):
    return 1 / (1 + xp.exp(-x))


def silu(x, xp):
    return x * sigmoid(x, xp)


def norm(p, name, x, xp):
    """A norm of the residual stream, and its gate where the model has one."""
    y = rms(x, p[f"{name}_norm"])
    if f"{name}_norm_down" not in p:
        return y
    return y * sigmoid(silu(y @ p[f"{name}_norm_down"], xp) @ p[f"{name}_norm_up"], xp)


def swiglu(x, gate, up, down, xp):
    return (silu(x @ gate, xp) * (x @ up)) @ down


def documents(row, model):
    """The number of the document of each position; all the same where documents are not kept apart."""
    found = 0
    numbers = []
    for token in row:
        if model.isolate_documents and int(token) == model.vocab_size - 1:
            found += 1
        numbers.append(found)
    return numbers


def convolved(xs, taps, ids):
    """xs: a vector for each position of a row; ids: its document."""
    return [
        sum(taps[j] * xs[t - j] for j in range(len(taps)) if t >= j and ids[t - j] == ids[t])
        for t in range(len(xs))
    ]


def turned(x, t, theta, channels, xp):
    out = []
    for j in range(0, channels, 2):
        angle = t * theta ** (-j / channels)
        out.append(x[j] * math.cos(angle) - x[j + 1] * math.sin(angle))
        out.append(x[j + 1] * math.cos(angle) + x[j] * math.sin(angle))
    return xp.stack([*out, *(x[j] for j in range(channels, len(x)))])


def attention(p, a, model, layer, ids, xp):
    """a: the normed input of each position of one row; layer: its number."""
    C, H = model.head_dim, model.heads
    everything = model.is_global[layer]
    G = model.global_kv_heads if everything and model.global_kv_heads else model.kv_heads
    window = len(a) if everything or model.window is None else model.window
    keys = [x @ p["wk"] for x in a]
    if model.conv_taps:
        keys = convolved(keys, p["conv_k"], ids)

    def placed(x, t):
        x = rms(x, eps=1e-6)
        return x if everything else turned(x, t, model.rope_theta, model.rope_channels, xp)

    outputs = []
    for t in range(len(a)):
        heads = []
        for h in range(H):
            g = h * G // H
            mine = slice(g * C, (g + 1) * C)
            q = placed((a[t] @ p["wq"])[h * C : (h + 1) * C], t)
            scores, values = [], []
            for s in range(max(0, t - window + 1), t + 1):
                if ids[s] == ids[t]:
                    scores.append(model.qk_mult * (q * placed(keys[s][mine], s)).sum() / math.sqrt(C))
                    values.append((a[s] @ p["wv"])[mine])
            weights = [xp.exp(score) for score in scores]
            y = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
            if model.exclusive_attention:
                own = values[-1]
                y = y - (y * own).sum() / ((own * own).sum() + 1e-6) * own
            if model.head_gate:
                y = y * 2 * sigmoid((a[t] @ p["attn_gate"])[h], xp)
            heads.append(y)
        outputs.append(xp.concatenate(heads) @ p["wo"])
    return convolved(outputs, p["conv_attn"], ids) if model.conv_taps else outputs


def select(scores, bias, top_k):
    """One token: (chosen experts, margin of every expert)."""
    biased = [s + b for s, b in zip(scores, bias, strict=True)]
    order = sorted(range(len(biased)), key=lambda e: (-biased[e], e))
    return order[:top_k], [s - biased[order[top_k]] for s in scores]


def combine_weights(scores, chosen, combine_sum, xp):
    gates = [sigmoid(scores[e], xp) for e in chosen]
    return [combine_sum * g / (sum(gates) + 1e-9) for g in gates]


def mlp(p, m, model, xp, chosen=None):
    """m: one token's normed input. Returns (output, chosen experts, margins)."""
    scores, margin = m @ p["router"], None
    if chosen is None:
        chosen, margin = select(scores, p["router_bias"], model.top_k)
    x = rms(m @ p["lat_down"], p["lat_norm"]) if model.latent_width else m
    y = 0.0
    for e, w in zip(chosen, combine_weights(scores, chosen, model.combine_sum, xp), strict=True):
        y = y + w * swiglu(x, p["exp_gate"][e], p["exp_up"][e], p["exp_down"][e], xp)
    if model.latent_width:
        y = y @ p["lat_up"]
    for i in range(model.shared_experts):
        y = y + swiglu(m, p[f"sh{i}_gate"], p[f"sh{i}_up"], p[f"sh{i}_down"], xp)
    return y, chosen, margin


def hidden(params, tokens, model, xp, told=None):
    """([rows][positions] final hidden vectors, [layers][tokens] chosen experts, the same of margins)."""
    chosen, margins = ([[] for _ in range(model.layers)] for _ in range(2))
    out = []
    for row in tokens:
        ids = documents(row, model)
        xs = [norm(params, "embed", params["embed"][int(token)], xp) for token in row]
        for i in range(model.layers):
            p = {name: value[i] for name, value in params.items() if not name.startswith(ENDS)}
            a = attention(p, [norm(p, "attn", x, xp) for x in xs], model, i, ids, xp)
            xs = [x + y for x, y in zip(xs, a, strict=True)]
            ys = []
            for x in xs:
                known = told[i][len(chosen[i])] if told else None
                y, mine, margin = mlp(p, norm(p, "mlp", x, xp), model, xp, known)
                ys.append(y)
                chosen[i].append(mine)
                margins[i].append(margin)
            if model.conv_taps:
                ys = convolved(ys, p["conv_mlp"], ids)
            xs = [x + y for x, y in zip(xs, ys, strict=True)]
        out.append([norm(params, "final", x, xp) for x in xs])
    return out, chosen, margins


def losses(h, lm_head, tokens, z_loss, xp):
    """Sums over predicted tokens: (cross-entropy + z-loss, cross-entropy, their number)."""
    total, ce, count = 0.0, 0.0, 0
    for row, states in zip(tokens, h, strict=True):
        for t in range(len(row) - 1):
            logits = states[t] @ lm_head
            lse = xp.log(xp.exp(logits).sum())
            ce = ce + lse - logits[int(row[t + 1])]
            total = total + lse - logits[int(row[t + 1])] + z_loss * lse * lse
            count += 1
    return total, ce, count


def mean_loss(params, tokens, model, z_loss, xp, told=None):
    h, _, _ = hidden(params, tokens, model, xp, told)
    total, _, count = losses(h, params["lm_head"], tokens, z_loss, xp)
    return total / count
