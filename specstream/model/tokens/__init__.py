"""Between text and logits: vocabulary, spelling, grammars, what changes logits, and sampling."""
