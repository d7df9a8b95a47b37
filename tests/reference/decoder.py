"""The slow, obvious twin of ladder.moe: one row, one position, one head, one expert at a time.

`xp` is the array module: numpy for values, jax.numpy with 64 bits for gradients. Arrays are never written
into. Names follow the parameter table in ladder.tensors.

A derivative cannot look at values, so it is told which experts each token uses: `chosen` [layers][tokens],
as a run in numpy returned it.
"""

import math


def norm(x, gain=None, eps=1e-5):
    y = x / ((x * x).mean() + eps) ** 0.5
    return y if gain is None else y * gain


def silu(x, xp):
    return x / (1 + xp.exp(-x))


def swiglu(x, gate, up, down, xp):
    return (silu(x @ gate, xp) * (x @ up)) @ down


def convolved(xs, taps):
    """xs: a vector for each position of a row."""
    return [sum(taps[j] * xs[t - j] for j in range(len(taps)) if t >= j) for t in range(len(xs))]


def turned(x, t, theta, xp):
    out = []
    for j in range(0, len(x), 2):
        angle = t * theta ** (-j / len(x))
        out.append(x[j] * math.cos(angle) - x[j + 1] * math.sin(angle))
        out.append(x[j + 1] * math.cos(angle) + x[j] * math.sin(angle))
    return xp.stack(out)


def attention(p, a, model, xp):
    """a: the normed input of each position of one row."""
    C, H, G = model.head_dim, model.heads, model.kv_heads
    keys = [x @ p["wk"] for x in a]
    if model.conv_taps:
        keys = convolved(keys, p["conv_k"])
    outputs = []
    for t in range(len(a)):
        heads = []
        for h in range(H):
            g = h * G // H
            q = turned(norm((a[t] @ p["wq"])[h * C : (h + 1) * C], eps=1e-6), t, model.rope_theta, xp)
            scores, values = [], []
            for s in range(t + 1):
                k = turned(norm(keys[s][g * C : (g + 1) * C], eps=1e-6), s, model.rope_theta, xp)
                scores.append((q * k).sum() / math.sqrt(C))
                values.append((a[s] @ p["wv"])[g * C : (g + 1) * C])
            weights = [xp.exp(score) for score in scores]
            heads.append(sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights))
        outputs.append(xp.concatenate(heads) @ p["wo"])
    return convolved(outputs, p["conv_attn"]) if model.conv_taps else outputs


def select(scores, bias, top_k):
    """One token: (chosen experts, margin of every expert)."""
    biased = [s + b for s, b in zip(scores, bias, strict=True)]
    order = sorted(range(len(biased)), key=lambda e: (-biased[e], e))
    return order[:top_k], [s - biased[order[top_k]] for s in scores]


def combine_weights(scores, chosen, combine_sum, xp):
    gates = [1 / (1 + xp.exp(-scores[e])) for e in chosen]
    return [combine_sum * g / (sum(gates) + 1e-9) for g in gates]


def mlp(p, m, model, xp, chosen=None):
    """m: one token's normed input. Returns (output, chosen experts, margins)."""
    scores, margin = m @ p["router"], None
    if chosen is None:
        chosen, margin = select(scores, p["router_bias"], model.top_k)
    y = 0.0
    for e, w in zip(chosen, combine_weights(scores, chosen, model.combine_sum, xp), strict=True):
        y = y + w * swiglu(m, p["exp_gate"][e], p["exp_up"][e], p["exp_down"][e], xp)
    for i in range(model.shared_experts):
        y = y + swiglu(m, p[f"sh{i}_gate"], p[f"sh{i}_up"], p[f"sh{i}_down"], xp)
    return y, chosen, margin


def hidden(params, tokens, model, xp, told=None):
    """([rows][positions] final hidden vectors, [layers][tokens] chosen experts, the same of margins)."""
    ends = ("embed", "embed_norm", "final_norm", "lm_head")
    chosen, margins = ([[] for _ in range(model.layers)] for _ in range(2))
    out = []
    for row in tokens:
        xs = [norm(params["embed"][int(token)], params["embed_norm"]) for token in row]
        for i in range(model.layers):
            p = {name: value[i] for name, value in params.items() if name not in ends}
            a = attention(p, [norm(x, p["attn_norm"]) for x in xs], model, xp)
            xs = [x + y for x, y in zip(xs, a, strict=True)]
            ys = []
            for x in xs:
                known = told[i][len(chosen[i])] if told else None
                y, mine, margin = mlp(p, norm(x, p["mlp_norm"]), model, xp, known)
                ys.append(y)
                chosen[i].append(mine)
                margins[i].append(margin)
            if model.conv_taps:
                ys = convolved(ys, p["conv_mlp"])
            xs = [x + y for x, y in zip(xs, ys, strict=True)]
        out.append([norm(x, params["final_norm"]) for x in xs])
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
