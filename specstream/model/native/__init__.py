"""Forward passes and sampling on a CPU in C++, compiled for this CPU when first needed."""
