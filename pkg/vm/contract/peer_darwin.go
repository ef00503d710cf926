package contract

import "golang.org/x/sys/unix"

func peerOfSocket(fd int) (*peer, error) {
	cred, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return nil, err
	}
	pid, err := unix.GetsockoptInt(fd, unix.SOL_LOCAL, unix.LOCAL_PEERPID)
	if err != nil {
		return nil, err
	}
	return &peer{uid: int(cred.Uid), pid: pid}, nil
}
