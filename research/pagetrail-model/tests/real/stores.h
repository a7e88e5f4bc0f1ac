/* Where stores.c has its area, for the plugin that watches it. No other program of a guest uses these addresses. */
#define PAGE 4096UL
#define AREA 0x200000000000UL
#define PAGES 4096UL
