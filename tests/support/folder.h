/* folder.h: how many entries a folder has, and so how many descriptors a test program has open. */
#ifndef ZR_TEST_FOLDER_H
#define ZR_TEST_FOLDER_H

#include <dirent.h>

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

#endif
