/* no_readers.c: libzr_malloc.so without liburcu, which would be one more library in every process.
 *
 * The arena's address index is read under liburcu by zr_arena_find() alone, and nothing here calls that: what
 * a pointer is, the marks of large.c say. So there are no readers (but the arena's first, which makes liburcu
 * know its thread), and nobody to wait for. */
void urcu_bp_read_lock(void);
void urcu_bp_read_unlock(void);
void urcu_bp_synchronize_rcu(void);
void urcu_bp_before_fork(void);
void urcu_bp_after_fork_parent(void);
void urcu_bp_after_fork_child(void);

void urcu_bp_read_lock(void)
{
}

void urcu_bp_read_unlock(void)
{
}

void urcu_bp_synchronize_rcu(void)
{
}

void urcu_bp_before_fork(void)
{
}

void urcu_bp_after_fork_parent(void)
{
}

void urcu_bp_after_fork_child(void)
{
}
