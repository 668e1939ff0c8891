/* Amazon Books (2014): ratings_Books.csv, "user,item,rating,time" without a header, ids are
 * strings. The builder keeps items and users with at least five ratings (sources.c).  Ids sorted by
 * bytes and numbered from 1 are the reference's categorical codes + 1. */
#include "data/read/source_job.h"

status read_amazon_books(source_job *job) {
    static const csv_column wanted[] = {
        {ROLE_USER, "1"}, {ROLE_ITEM, "2"}, {ROLE_ACTION, "3"}, {ROLE_TIME, "4"}};
    csv_layout t;
    job_layout(job, &t, ",", true);
    return job_read_member(job, "ratings_Books.csv", &t, false, wanted, 4);
}
