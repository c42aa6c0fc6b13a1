"""Passes in native code: C++ compiled for this very CPU when it is first needed."""
