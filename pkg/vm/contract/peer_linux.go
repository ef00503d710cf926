package contract

import "golang.org/x/sys/unix"

func peerOfSocket(fd int) (*peer, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return nil, err
	}
	return &peer{uid: int(cred.Uid), pid: int(cred.Pid)}, nil
}
