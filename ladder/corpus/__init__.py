"""Text in, tokens out: built-in or the user's own text, cleaned, split, encoded and kept as shards."""

from ladder.corpus.cache import CorpusError, cache_folder
from ladder.corpus.shards import Corpus, build, check_declared, open_corpus

__all__ = ["Corpus", "CorpusError", "build", "cache_folder", "check_declared", "open_corpus"]
