"""Working memory at work: what compacts a history, tells and refines it, and moves it elsewhere (CONTRACT §7)."""
