"""A text engine behind OpenAI's chat completions: vLLM, SGLang, llama.cpp, Ollama, OpenAI. No torch."""
