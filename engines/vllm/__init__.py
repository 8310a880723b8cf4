"""vLLM in a process of its own: it verifies the loop's drafts, drafts, or speculates by itself."""
