"""Pre-training data: corpora, sentences, packed blocks of tokens, tokenizers trained on a corpus."""
