// Adds up the numbers that come by a Unix socket, and says the sum.
const numbers = [];
require('net').createServer((client) => {
  client.on('error', () => {});
  client.on('data', (text) => {
    numbers.push(Number(text));
    client.end('sum ' + numbers.reduce((sum, number) => sum + number, 0) + '\n');
  });
}).listen(process.argv[2]);
