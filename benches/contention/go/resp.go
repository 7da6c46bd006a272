package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
)

// conn is a plain connection: the leanest client that there can be, so that the measured way weighs most.
type conn struct {
	net.Conn
	in  *bufio.Reader
	out []byte
}

func dial() *conn {
	socket, err := net.Dial("tcp", address)
	check(err)
	return &conn{Conn: socket, in: bufio.NewReaderSize(socket, 512)}
}

func (c *conn) send(words ...string) {
	c.out = append(strconv.AppendInt(append(c.out[:0], '*'), int64(len(words)), 10), "\r\n"...)
	for _, word := range words {
		c.out = append(strconv.AppendInt(append(c.out, '$'), int64(len(word)), 10), "\r\n"...)
		c.out = append(append(c.out, word...), "\r\n"...)
	}
	_, err := c.Write(c.out)
	check(err)
}

// reply returns the text of a reply, "" for nil, and the last element of an array.
func (c *conn) reply() string {
	line, err := c.in.ReadSlice('\n')
	check(err)
	kind, rest := line[0], string(line[1:len(line)-2])
	switch kind {
	case '+', ':':
		return rest
	case '$':
		length := number(rest)
		if length < 0 {
			return ""
		}
		text := make([]byte, length+2)
		_, err = io.ReadFull(c.in, text)
		check(err)
		return string(text[:length])
	case '*':
		last := ""
		for range number(rest) {
			last = c.reply()
		}
		return last
	}
	check(fmt.Errorf("an unexpected reply: %q", line))
	return ""
}

func (c *conn) do(words ...string) string {
	c.send(words...)
	return c.reply()
}
