-- Returns the store's time in microseconds. KEYS: the clock. ARGV: the latest time that the caller knows.
return next_time(KEYS[1], ARGV[1])
