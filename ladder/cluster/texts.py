"""Which tokens the runs of a ladder are trained on: pinned in its store by their sha256, once."""

import json
from dataclasses import dataclass

from ladder import corpus
from ladder.corpus import Corpus, CorpusError
from ladder.corpus.cache import Say
from ladder.corpus.remote import fetch, publish, published
from ladder.spec import RunSpec
from ladder.store import Store
from ladder.values import digest

DATA = "data"  # in the store: SHA256/ as written by `ladder data build`, declared-KEY.json for each text


@dataclass(frozen=True)
class Text:
    """Where workers find the token shards of a run, and what they must be."""

    folder: str  # or URL
    sha256: str


def key(spec: RunSpec) -> str:
    """The same for runs that are declared on the same text and vocabulary."""
    return digest([spec.data.model_dump(mode="json", exclude={"phases"}), spec.model.vocab_size])[:16]


def text_of(store: Store, spec: RunSpec, say: Say) -> Text:
    """The text of a run: from the store if `ladder data build` put it there, else built in the user's cache.

    The first call pins its sha256 in the store. Raises CorpusError when the text is another by now: runs of
    one ladder are compared, so they share their text.
    """
    declared = _declared(store, spec)
    if declared and published(store.path(DATA), declared):
        folder = store.path(f"{DATA}/{declared}")
        fetch(folder, declared, say, verify=True)
        return Text(folder, declared)
    built = corpus.build(spec.data, spec.model.vocab_size, say=say)
    _pin(store, spec, built)
    return Text(str(built.folder), built.sha256)


def put_text(store: Store, spec: RunSpec, say: Say) -> tuple[Text, bool]:
    """Build the text of a run and write it into the store; False when it lay there already."""
    built = corpus.build(spec.data, spec.model.vocab_size, say=say)
    _pin(store, spec, built)
    new = publish(built, store.path(DATA))
    return Text(store.path(f"{DATA}/{built.sha256}"), built.sha256), new


def _declared(store: Store, spec: RunSpec) -> str | None:
    try:
        return json.loads(store.read(_name(spec)))["sha256"]
    except FileNotFoundError:
        return None


def _pin(store: Store, spec: RunSpec, built: Corpus) -> None:
    content = {"sha256": built.sha256, "data": built.manifest["data"], "vocab_size": built.vocab_size}
    if store.files.create(_name(spec), json.dumps(content, indent=1).encode()):
        return
    declared = _declared(store, spec)
    if declared != built.sha256:
        names = ", ".join(source.uri for source in spec.data.sources)
        raise CorpusError(
            f"{store.url} was begun on the text {str(declared)[:12]}, {names} now gives {built.sha256[:12]}: "
            "bring the old text back, or use another store (--store DIR)"
        )


def _name(spec: RunSpec) -> str:
    return f"{DATA}/declared-{key(spec)}.json"
