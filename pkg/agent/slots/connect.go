package slots

import (
	"context"
	"fmt"
	"net"

	"macrack.io/macrack/pkg/vm/contract"
)

// SetEnvironment sends the environment of the startup script to the runner of the instance.
func (m *Manager) SetEnvironment(ctx context.Context, uid string, environment []contract.EnvironmentVariable) error {
	s, err := m.find(uid, Attached)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, m.config.AnswerTimeout)
	defer cancel()
	return s.client.SetEnvironment(ctx, environment)
}

// Connect connects to a vsock port of the guest of a running VM. The connection
// ends with the VM.
func (m *Manager) Connect(ctx context.Context, uid string, port uint32) (net.Conn, error) {
	client, err := m.running(uid)
	if err != nil {
		return nil, err
	}
	return client.Connect(ctx, port)
}

// Dial connects to a TCP port of the guest of a running VM that is isolated. The connection ends
// with the VM.
func (m *Manager) Dial(ctx context.Context, uid string, port uint16) (net.Conn, error) {
	client, err := m.running(uid)
	if err != nil {
		return nil, err
	}
	return client.Dial(ctx, port)
}

// running returns the client of a running VM's runner.
func (m *Manager) running(uid string) (*contract.Client, error) {
	s, err := m.find(uid, Attached)
	if err != nil {
		return nil, err
	}
	if state := s.get().State; state == nil || state.VM != contract.VMRunning {
		return nil, fmt.Errorf("%w: it is not running", ErrNotHere)
	}
	return s.client, nil
}
