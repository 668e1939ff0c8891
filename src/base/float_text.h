/* A float32 as text: the shortest decimal form that reads back as the same float32, with a '.'
 * whatever the locale says.  Any thread. */
#ifndef HSTU_BASE_FLOAT_TEXT_H
#define HSTU_BASE_FLOAT_TEXT_H

enum { FLOAT_TEXT_BYTES = 32 };

/* Writes the text ("inf", "-inf" and "nan" where it is no number) and returns its length. */
int float_text(char text[FLOAT_TEXT_BYTES], float value);

#endif
