package contract

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// MaxEnvironment bounds the environment of a startup script, in bytes as EnvironmentSize counts
// them. The kernel of macOS accepts 1 MiB of arguments and environment.
const MaxEnvironment = 512 << 10

// maxEnvironmentBody bounds the JSON of an environment, which has its values in base64.
const maxEnvironmentBody = 4 * MaxEnvironment

// EnvironmentVariable is an environment variable of the startup script.
type EnvironmentVariable struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

// String returns the variable without its value, which may be a secret.
func (v EnvironmentVariable) String() string { return v.Name + "=(not shown)" }

// GoString is String.
func (v EnvironmentVariable) GoString() string { return v.String() }

// Size returns the number of bytes of the variable in the memory of a process, as the kernel counts
// them: name, '=', value, a zero byte and a pointer.
func (v EnvironmentVariable) Size() int { return len(v.Name) + len(v.Value) + 10 }

// EnvironmentSize returns the size of an environment.
func EnvironmentSize(environment []EnvironmentVariable) int {
	size := 0
	for _, v := range environment {
		size += v.Size()
	}
	return size
}

// SetEnvironment sends the environment of the startup script. A runner that has one already ignores
// it.
func (c *Client) SetEnvironment(ctx context.Context, environment []EnvironmentVariable) error {
	_, err := c.do(ctx, http.MethodPut, PathEnvironment, environment)
	return err
}

func serveEnvironment(w http.ResponseWriter, req *http.Request, r Runner) {
	var environment []EnvironmentVariable
	if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxEnvironmentBody)).Decode(&environment); err != nil {
		http.Error(w, "invalid environment; send a JSON list of at most "+fmt.Sprint(maxEnvironmentBody)+" bytes", http.StatusBadRequest)
		return
	}
	if size := EnvironmentSize(environment); size > MaxEnvironment {
		http.Error(w, fmt.Sprintf("the environment has %d bytes, and the limit is %d", size, MaxEnvironment), http.StatusRequestEntityTooLarge)
		return
	}
	r.SetEnvironment(environment)
	writeState(w, http.StatusAccepted, r.State())
}
