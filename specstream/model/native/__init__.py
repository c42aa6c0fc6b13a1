"""Forward passes and sampling on a CPU in C++, built with a wheel or compiled when first needed."""
