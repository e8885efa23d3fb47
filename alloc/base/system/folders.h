/* folders.h: the folders where a process leaves what others are to find. Private to the project.
 *
 * Paths have no final slash. The environment is read once. */
#ifndef ZR_FOLDERS_H
#define ZR_FOLDERS_H

#include "alloc/zr.h"

enum { ZR_FOLDER_BYTES = 288 };

/* TMPDIR, else /tmp. */
const char *zr_folder_temporary(void);
/* The folder of this user's living processes: zr under XDG_RUNTIME_DIR or /run/user/UID, else /tmp/zr-UID.
 * Creates it (mode 0700) if `make`; it must be a folder of this user's that no other user may enter, and no
 * symbolic link. ZR_ERR_IO, with a message: it is not, or cannot be created. */
zr_result zr_folder_runtime(char out[ZR_FOLDER_BYTES], bool make);
/* The XDG_RUNTIME_DIR that sets this process's folder apart from the user's other processes; "": none does.
 * It stays the same when folders are removed or made. */
const char *zr_folder_scope(void);
/* PATH, the folders of programs, apart by colons; "": unset. */
const char *zr_folder_programs(void);
/* Reads the environment, if no call has read it yet. Called when the first backend is opened, because another
 * thread of the program may change the environment later. Any thread. */
void zr_folders_prepare(void);
/* For tests: other values than the environment's; NULL: the variable is not set. */
void zr_folders_set(const char *temporary, const char *runtime);
void zr_folders_set_programs(const char *path);

#endif
