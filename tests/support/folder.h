/* folder.h: how many entries a folder has, and so how many descriptors a test program has open, and how many
 * of them a program would inherit. */
#ifndef ZR_TEST_FOLDER_H
#define ZR_TEST_FOLDER_H

#include <dirent.h>
#include <fcntl.h>

/* Without "." and ".."; -1: it cannot be read. */
static inline int folder_entries(const char *path)
{
    DIR *listing = opendir(path);
    int count = -2;
    if (!listing)
        return -1;
    while (readdir(listing))
        count++;
    closedir(listing);
    return count;
}

/* To compare with another count: the listing's own descriptor is in both. */
static inline int open_descriptors(void)
{
    return folder_entries("/proc/self/fd");
}

/* Those that stay open over exec, beside the standard ones. */
static inline int inherited_descriptors(void)
{
    int count = 0;
    for (int fd = 3; fd < 4096; fd++) {
        int flags = fcntl(fd, F_GETFD);
        count += flags >= 0 && !(flags & FD_CLOEXEC);
    }
    return count;
}

#endif
